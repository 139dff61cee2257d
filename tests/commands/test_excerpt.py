"""A reason names a place in a kernel, and `check` shows it with carets."""

import ast
import itertools

import pytest
from triton.compiler.errors import CompilationError

from common import source
from common.sandbox.failures import judge
from common.source import Place, excerpt
from tests.support.workers import ask

KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, d):
    col = tl.arange(0, d)
    tl.store(y + col, tl.load(x + col))


def rotate_half(x):
    y = torch.empty_like(x)
    _kernel[(1,)](x, y, 3)
    return y
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rope.py").write_text(KERNEL)
    return tmp_path


# --- reasons --------------------------------------------------------------------------------------


def test_an_exception_of_a_kernel_names_its_expression(worker):
    reply, _ = ask(worker(KERNEL, "rotate_half"))
    assert reply["verdict"] == "RUNTIME_ERROR"
    assert reply["reason"].startswith("ValueError: arange's arguments must be")
    assert reply["reason"].endswith(", line 8 of rotate_half.py: tl.arange(0, d)")
    assert reply["places"] == [["rotate_half.py", 8, "tl.arange(0, d)"]]


@pytest.mark.parametrize("text", ["no power of 2", None])
def test_a_front_end_error_is_told_without_the_source_that_its_text_quotes(text):
    (node,) = ast.parse("_kernel()").body
    outer = CompilationError("def another():\n    pass", node)
    outer.__cause__ = CompilationError(KERNEL, node, text)
    outer.__cause__.__cause__ = ValueError("no\npower of 2")
    reason = f"a kernel does not compile: {text or 'ValueError: no power of 2'}"
    assert judge(outer) == {"verdict": "COMPILE_ERROR", "reason": reason}


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        ((8, 10, 25), "tl.arange(0, d)"),
        ((8, 10, 24), "col = tl.arange(0, d)"),  # no code: the columns are another text's
        ((9, 10, 25), "tl.arange(0, d)"),  # it ends on another line
        ((8, None, None), "col = tl.arange(0, d)"),
    ],
)
def test_a_place_is_an_expression_or_the_whole_line(columns, shown, folder):
    place = source.place(str(folder / "rope.py"), 8, *columns)
    assert str(place) == f"line 8 of rope.py: {shown}"
    assert str(source.place("/no/such/file.py", 8, *columns)) == "line 8 of file.py"


# --- excerpts -------------------------------------------------------------------------------------

CARETS = ["rope.py:8: col = tl.arange(0, d)", "                 ^^^^^^^^^^^^^^^"]
STORE = "rope.py:9: tl.store(y + col, tl.load(x + col))"
LOAD = [STORE, "                             ^^^^^^^^^^^^^^^^"]


@pytest.mark.parametrize(
    ("places", "lines"),
    [
        ([("rope.py", 8, "tl.arange(0, d)")], CARETS),
        ([("rope.py", 9, "tl.store(y + col, tl.load(x + col))"),
          ("rope.py", 9, "tl.load(x + col)")], [STORE, *LOAD]),
        ([], []),
        ([("another.py", 8, "x")], []),
        ([("rope.py", 99)], []),
        ([("rope.py", 6, "changed()")], []),
    ],
)  # fmt: skip
def test_an_excerpt_has_carets_under_each_expression(places, lines, folder):
    assert list(excerpt(itertools.starmap(Place, places), folder)) == lines


@pytest.mark.parametrize("room", [36, 196])
def test_carets_point_at_their_expression_on_a_narrow_terminal(folder, room):
    call = "tl.load(x + rows[:, None].to(tl.int64) * inputs + k[None, :], there, 0.0)"
    (folder / "rope.py").write_text(f"        x_tile, w_tile = {call}, tl.load(w, there)\n")
    code, carets = excerpt([Place("rope.py", 1, call)], folder, room)
    assert code.startswith("rope.py:1: ")
    assert max(len(code), len(carets)) <= room
    pointed = code[carets.index("^") : len(carets)]
    assert pointed and call.startswith(pointed) and (pointed == call or room < 100)
