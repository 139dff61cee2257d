"""A digest changes with the code and not with its words."""

import pytest

from common.digest import digest
from common.solutions import discover

SOURCE = '''"""A module."""

import torch


def double(x):
    """Return x twice."""
    return 2 * x  # the whole of x
'''


def digest_of(folder, text):
    path = folder / "rope.py"
    path.write_text(text)
    return digest([path])


WORDS = [
    ('"""A module."""', '"""Another\n\nmodule; "quoted".\n"""'),
    ('"""A module."""\n', ""),
    ('    """Return x twice."""\n', ""),
    ("  # the whole of x", ""),
    ("import torch\n", "import torch  # for its tensors\n\n# a comment\n"),
    ("import torch\n", 'import torch\n"""A word in between: ünïcode."""\n'),
]
CODE = [
    ("2 * x", "3 * x"),
    ("2 * x", "2  * x"),
    ("import torch", "import torch; torch.manual_seed(0)"),
    ('"""A module."""', '"""A module."""; import os'),
    ('"""Return x twice."""', '"""Return x twice."""; x = 1'),
    ('    """Return x twice."""\n', '    "a"; x += 1; "b"\n'),
    ("2 * x", "2 * x + len('# no comment')"),
    ("import torch", 'import torch\nTEXT = """a\n\nb"""'),
    ("def double(x):", "def double(:  # no Python"),
]


@pytest.mark.parametrize(
    ("old", "new", "counts"), [*((*w, False) for w in WORDS), *((*c, True) for c in CODE)]
)
def test_code_counts_and_words_do_not(tmp_path, old, new, counts):
    changed = SOURCE.replace(old, new, 1)
    assert changed != SOURCE
    assert (digest_of(tmp_path, changed) != digest_of(tmp_path, SOURCE)) == counts


def test_a_files_name_and_other_files_count(tmp_path):
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "b.py").write_text(SOURCE)
    (tmp_path / "c.json").write_text("{}")
    found = {digest([tmp_path / name]) for name in ("a.py", "b.py", "c.json")}
    (tmp_path / "c.json").write_text("{ }")
    assert len(found | {digest([tmp_path / "c.json"])}) == 4


def test_with_words_every_byte_counts(tmp_path):
    path = tmp_path / "rope.py"
    path.write_text(SOURCE)
    before = digest([path]), digest([path], words=True)
    path.write_text(SOURCE.replace("the whole of x", "all of x"))
    assert digest([path]) == before[0] and digest([path], words=True) != before[1]


LAUNCHES = "import rope_triton\n\n\ndef rope(t, freqs):\n    return rope_triton.launch(t, freqs)\n"
ALONE = "import rope_triton\ndef launch():\n    rope = 1\n    return rope"


@pytest.mark.parametrize(
    ("rope", "rope_triton", "helper"),
    [
        ("import rope_triton\ndef rope(): ...", "def launch(): ...", True),
        ("from rope_triton import launch as go\ndef rope(): ...", "def launch(): ...", True),
        # it may have the function
        (LAUNCHES, "def rope(t, freqs): ...", False),
        (LAUNCHES, "from kernels import rotate as rope", False),
        (LAUNCHES, "from kernels import *", False),
        (LAUNCHES, "if True:\n    rope = print", False),
        (LAUNCHES, "def rope(:", False),
        # only it imports itself
        ("import rope_triton_2\ndef rope(): ...", ALONE, False),
    ],
)
def test_a_helper_lacks_the_function_and_another_file_imports_it(
    tmp_path, rope, rope_triton, helper
):
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice" / "rope.py").write_text(rope)
    (tmp_path / "alice" / "rope_triton.py").write_text(rope_triton)
    solutions, helpers = (
        [each.name for each in discover(tmp_path, helpers=only)] for only in (False, True)
    )
    assert solutions == ["alice/rope", "alice/rope_triton"][: 2 - helper]
    assert helpers == ["alice/rope_triton"] * helper


@pytest.mark.parametrize(
    "file", ["rope_triton.py", "kernels/rope.py", "rope_triton.py: a solution"]
)
def test_what_is_imported_counts_whatever_its_name(tmp_path, file):
    file, _, solution = file.partition(": ")
    source = SOURCE + "def rope(t): ...\n" * bool(solution)
    (tmp_path / "alice" / "kernels").mkdir(parents=True)
    (tmp_path / "alice" / "rope.py").write_text(LAUNCHES)
    helper = tmp_path / "alice" / file
    helper.write_text(source)
    solution, *_ = discover(tmp_path)
    before = solution.digest
    helper.write_text(source.replace("2 * x", "3 * x"))
    assert solution.digest != before
