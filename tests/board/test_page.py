"""The page without a browser: its file, its views, and the libraries that it carries."""

import base64
import json
import re
import zlib

import pytest
from msgspec.structs import replace

from common.board.page import rendering
from common.board.ranking import rank
from common.board.table import figure
from common.records.runs import Results
from common.solutions import Solution
from tests.support.boards import RUN, row
from tests.support.made_up import site_of


@pytest.fixture
def alice(tmp_path):
    """A folder with a solution and two helpers, of which one is used."""
    folder = tmp_path / "alice"
    folder.mkdir()
    (folder / "rope.py").write_text('"""A note."""\nimport math, tiles\nfrom os import path\n')
    (folder / "tiles.py").write_text("import triton\nfrom . import rope\n\n@triton.jit\n"
                                     "def kernel(x):\n    return x\n\ndone = 1\n")  # fmt: skip
    (folder / "unused.py").write_text("")
    return Solution(folder / "rope.py", "rope")


def drawn(tmp_path, results, *solutions):
    """The page's text, and its data as a browser unpacks them."""
    text = site_of([results], solutions).write(tmp_path / "site").read_text()
    packed = re.search(r'id="packed">(.*?)</script>', text)[1]
    return text, json.loads(zlib.decompress(base64.b64decode(packed)))


def solution(tmp_path, name):
    """A solution whose file is empty."""
    path = tmp_path / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    return Solution(path, path.stem)


def of(tmp_path, rows, name="a-gpu", **fields):
    run = replace(RUN, **{"device_name": name} | fields)
    return Results(tmp_path / name, runs=[run], rows=rows)


# --- the file -------------------------------------------------------------------------------------


def test_a_board_of_unknown_solutions_is_missing(tmp_path):
    _, data = drawn(tmp_path, of(tmp_path, [row()]))
    assert data["views"][""] == data["views"]["missing"], "no solution is in the tree"


# --- boards ---------------------------------------------------------------------------------------

MANY = [
    row("alice/rope", us=10.0),
    row("alice/rope", us=10.0, case="c2", direction="backward"),
    row("bob/rope", us=5.0),
    row("bob/rope", us=[38.0, 40.0, 43.0], case="c2", direction="backward"),
    row("bob/rope", us=1.0, track="extended", case="c3"),
]


def test_each_case_is_ranked_by_itself(tmp_path):
    everyone = [solution(tmp_path, name) for name in ("alice/rope", "bob/rope")]
    site = site_of([of(tmp_path, MANY)], everyone)
    alice, bob = "alice/rope", "bob/rope"
    assert {choice: [entry.solution for entry in track.entries]
            for choice, track in site.boards[0].choices.items()} == {
        "": [alice, bob],
        "c1": [bob, alice],
        "c2": [alice, bob],
    }  # fmt: skip
    track = rank(MANY)[0]
    value, half = figure(track.entry(bob).scores[track.main]).split(" ± ")
    assert float(half) > 0
    text = re.sub(r"<[^>]*>", "", dict(site.views())["board a-gpu rope core"])
    assert f"{value} ± {half}" in text, "as in Markdown"


def test_a_tab_leads_to_what_is_nearest_to_the_board(tmp_path):
    rows = [row("alice/rope"), row("alice/rope", track="extended", case="c2"),
            row("alice/rotate_half", op="rotate_half")]  # fmt: skip
    devices = [of(tmp_path, rows[:number], name) for name, number in (("a", 3), ("b", 1))]
    boards = site_of(
        devices, [solution(tmp_path, name) for name in ("alice/rope", "alice/rotate_half")]
    ).boards
    (last,) = (b for b in boards if b.device.slug == "a" and b.track.name == "extended")
    assert {kind: {label: board.address for label, board in tabs.items()}
            for kind, tabs in last.tabs(boards).items()} == {
        "Op": {"rope": "board a rope extended", "rotate_half": "board a rotate_half core"},
        "Device": {"a": "board a rope extended", "b": "board b rope core"},
        "Track": {"core": "board a rope core", "extended": "board a rope extended"},
    }  # fmt: skip


def test_a_device_without_times_shows_verdicts_and_says_so(tmp_path, alice):
    rows = [row(gpu={}, host={}, twin=True, case=case) for case in ("c1", "c2")]
    _, data = drawn(tmp_path, of(tmp_path, rows, "cpu", device="cpu"), alice)
    text = data["views"]["board cpu rope core"]
    assert "Nothing was timed" in text and "GPU, forward</button>" not in text
    assert "2/2" in text
    assert "PASSED" in data["views"]["solution alice/rope"]


# --- sources --------------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True])
def test_a_solutions_files_are_its_own_and_the_helpers_that_it_imports(alice, tmp_path, deep):
    names = ["rope.py", "tiles.py"]
    if deep:
        inner = alice.path.parent / "parts"
        inner.mkdir()
        alice.path.write_text("from parts import halves\nimport parts.signs\n")
        (inner / "halves.py").write_text("from .inner import x\nimport tiles\n")
        (inner / "signs.py").write_text("")
        (inner / "inner.py").write_text("import os, rope\nfrom . import unused")
        (alice.path.parent / "inner.py").write_text("")
        names += ["parts/halves.py", "parts/signs.py", "parts/inner.py"]
    (alice.path.parent / "README.md").write_text("# Alice\n")
    _, data = drawn(tmp_path, of(tmp_path, [row()]), alice)
    shown = re.findall(r'<summary translate="no">(.*?)</summary>.*?data-text="(\d+)"',
                       data["views"]["solution alice/rope"])  # fmt: skip
    assert sorted(name for name, _ in shown) == sorted([*names, "README.md"])
    assert shown[0][0] == "rope.py" and shown[-1][0] == "README.md"
    assert data["texts"][int(shown[0][1])] == rendering.lines(alice.path)


@pytest.mark.parametrize("text", ["def broken(:\n", "\0", "x = '" + "(" * 300])
def test_a_file_that_does_not_parse_is_shown_as_it_is(alice, text):
    alice.path.write_text(text)
    assert alice.files == [alice.path]
    assert rendering.lines(alice.path).count('class="line') == 1
