"""triton-viz: what becomes of what it says, which a stand-in says here."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from common.errors import UserError
from common.tools import sanitizers
from tests.support import forked
from tests.support.sanitizing import CASES, PLAIN, RIGHT, sanitized, symbolic, written

pytestmark = pytest.mark.slow

# The modules of triton-viz that are used; each kernel gets a report at once.
STAND_IN = {
    "__init__": """
        import types

        def trace(client):
            where = types.SimpleNamespace(lineno=9, filename="/a/rotate_half.py", line_of_code=" x")
            client.records.append(types.SimpleNamespace(
                op_type=int, tensor_name="y", user_code_tracebacks=[where]))
            return lambda kernel: kernel
    """,
    "core/callbacks": "ForLoopCallbacks = dict",
    "core/data": "Store = int",
    "clients/sanitizer/sanitizer": """
        class SymbolicSanitizer:
            def __init__(self, abort_on_error):
                assert not abort_on_error
                self.records = []
    """,
}
REPORTED = "    import triton\n    triton.jit(lambda: None)\n" + RIGHT


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    for name, text in STAND_IN.items():
        path = tmp_path / "site" / "triton_viz" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


class Forked:
    """`subprocess.Popen` as far as it is used, forked after torch had been imported."""

    folder = Path()

    def __init__(self, command, cwd, env, stdout, stderr, text):
        python, flag, module, *arguments = command
        assert (python, flag, stdout, text) == (sys.executable, "-m", subprocess.PIPE, True)
        self.returncode = forked.run(module, arguments, Path(cwd), self.folder, env)
        stderr.write((self.folder / "err").read_text())
        self.stdout = (self.folder / "out").open()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stdout.close()

    def wait(self):
        return self.returncode


# for the case without an end alone
LITTLE_TIME = """
findings, plenty = symbolic.findings, symbolic.SECONDS

def timed(path, op, case):
    symbolic.SECONDS = 1 if case.dtype == "float32" else plenty
    return findings(path, op, case)

symbolic.findings = timed
"""


def first(statement, text=RIGHT):
    return text.replace("x1, x2 =", f"{statement}\n        x1, x2 =")


@pytest.mark.parametrize(
    ("text", "clean", "said"),
    [
        (RIGHT, True, "nothing found\n"),
        (first("print('{}')"), True, "nothing found\n"),
        (REPORTED, False, "writes outside of y, line 9 of rotate_half.py: x\n"),
        (first("raise NotImplementedError('blocks')"), True, "cannot follow: blocks\n"),
        (first("import os; os._exit(0)"), True, "cannot follow: its process ended with 0\n"),
        (first("import os; os.abort()"), True, "cannot follow: its process ended with -6\n"),
        (
            first("raise ValueError('stuck')", REPORTED),
            False,
            "writes outside of y, line 9 of rotate_half.py: x; cannot follow: ValueError: stuck",
        ),
    ],
)
def test_what_is_found_decides_and_what_cannot_be_followed_does_not(
    stand_in, monkeypatch, tmp_path, text, clean, said, capsys
):
    if text is not RIGHT:  # one real process shows that this is how the tool is started
        monkeypatch.setattr(Forked, "folder", tmp_path)
        monkeypatch.setattr(sanitizers.subprocess, "Popen", Forked)
    solution = written(tmp_path, text)
    assert sanitized(solution, [sanitizers.SYMBOLIC], CASES[:1]) == clean
    out = capsys.readouterr().out
    assert out.startswith(f"triton-viz alice/rotate_half {CASES[0].name}: {said}")


def test_a_case_without_an_end_costs_itself_alone(stand_in, tmp_path):
    text = first("while x.dtype == torch.float32: pass")
    path = written(tmp_path, text).path
    names = [CASES[0].name, "10x2x4x8-float16-reversed"]
    program = PLAIN.replace(" symbolic.main", LITTLE_TIME + "symbolic.main")
    stopped = [row["stopped"] for row in symbolic(program, path, names)]
    assert stopped == ["no end within 1 s", ""]


def test_what_does_not_run_here_is_a_fault(stand_in, tmp_path):
    (tmp_path / "site" / "triton_viz" / "__init__.py").write_text("import nowhere")
    with pytest.raises(UserError, match=r"does not run here: ModuleNotFoundError: .*nowhere"):
        sanitized(written(tmp_path, RIGHT), [sanitizers.SYMBOLIC])


def test_no_triton_viz_is_a_fault(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="triton-viz is not installed: nox -s sanitize -- --tool"):
        sanitized(tools=[sanitizers.SYMBOLIC])
