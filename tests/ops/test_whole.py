"""What is said of an op whose file is not whole, one fault each."""

import dataclasses

import pytest

from common import interfaces, ops, paths, printable
from common.errors import UserError
from common.ops import _whole
from common.ops._shaped import shaped
from common.ops._skeleton import OP as SKELETON
from common.ops._skeleton import reference

FILE = "common/ops/skeleton.py"
AXES = SKELETON.axes


def fault(**fields):
    """What is said of the skeleton with these fields in place of its own."""
    op = dataclasses.replace(SKELETON, **fields)
    try:
        with _whole.faults_of("skeleton"):
            _whole.check("skeleton", op)
            _whole.check_by_trial(op)
    except UserError as error:
        return str(error)
    return ""


def two(tier):
    """An impossible board case, and two of one twin, the second twice."""
    case = next(SKELETON.cases("board"))
    yield dataclasses.replace(case, dtype="float64")
    yield from (dataclasses.replace(case, shape=(rows, 64)) for rows in (2048, 2049, 2049))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"name": "another"}, ": OP.name is 'another', not the file's name"),
        ({"draw": None}, ": TypeError: 'NoneType' object"),
        ({"reference": None}, ": TypeError: None is not a callable object"),
        ({"reference": lambda x: x}, ": OP.reference takes ['x'], the interface ['x', 'y']"),
        ({"differentiable": ()}, ": "),
        ({"differentiable": "gate"},
         ": OP.differentiable names ['a', 'e', 'g', 't']; the arguments are ['x', 'y']"),
        ({"tracks": {"packed": ""}},
         ": OP.tracks lacks 'standard', the track of 10x2x4x8-float32"),
        ({"cases": lambda tier: (dataclasses.replace(case, ranked_by=clock)
                                 for case in SKELETON.cases(tier) for clock in ("gpu", "host"))},
         ": OP.cases: 2 board cases have the same name, 10x2x4x8-float32"),
        ({"cases": lambda tier: iter(())}, ": OP.cases: the board has no case"),
        ({"cases": lambda tier: 1 / 0}, ": ZeroDivisionError: division by zero"),
        ({"reference": lambda x, y: x * z},  # noqa: F821
         ": NameError: name 'z' is not defined"),
        ({"reference": lambda x, y: x * y.detach()},
         ": OP.differentiable: the reference gives y no gradient"),
        ({"outputs": lambda case: {"output": (*case.shape, 1)[1:]}},
         ": OP.reference of 10x2x4x8-float32: gives [(torch.float32, 10, 2, 4, 8)], not"
         " [(torch.float32, 2, 4, 8, 1)]"),
        ({"outputs": lambda case: {"output_a": case.shape}},
         ": OP.split has the outputs ['output'], not ['output_a']"),
        ({"axes": lambda case, arguments: {"output": AXES(case, arguments)["output"]}},
         ": OP.axes of 10x2x4x8-float32: 'x' has 4 dimensions"),
        ({"work": lambda case, direction: 8}, ": AttributeError: 'int' object has no attribute"),
    ],
)  # fmt: skip
def test_each_fault_is_a_line_with_the_file_and_the_field(fields, said):
    line = fault(**fields)
    assert line.startswith(f"{FILE}{said}" if said else "") and "\n" not in line
    assert bool(line) == bool(said)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (("x",), "TypeError: reference() missing 1 required positional argument: 'y'"),
        (("x", "z"), "OP.differentiable names ['z']; the arguments are ['x', 'y']"),
        ("gate", "OP.differentiable names ['a', 'e', 'g', 't']; the arguments are ['x', 'y']"),
    ],
)
def test_the_names_of_shaped_arguments_are_those_of_the_interface(rows, said):
    op = shaped(name="skeleton", interface=SKELETON.interface, reference=reference,
                flops=(5, 11), rows=rows)  # fmt: skip
    assert fault(**vars(op)) == f"{FILE}: {said}"


@pytest.fixture
def file(monkeypatch, tmp_path):
    """A function that writes `skeleton.py` among no other op."""
    folder = tmp_path / "common" / "ops"
    folder.mkdir(parents=True)
    monkeypatch.setattr(interfaces, "ROOT", tmp_path)
    monkeypatch.setattr(interfaces, "OPS", folder)
    return lambda text: (folder / "skeleton.py").write_text(text)


SOURCE = (paths.OPS / "_skeleton.py").read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("OP = shaped(", "OP = shaped((", ", line 38: '(' was never closed"),
        ("OP = ", "OPERATION = ", " defines no OP: see rotate_half.py"),
        ("(Protocol)", "",
         ": no typing.Protocol with a `__call__` states the signature of solutions"),
    ],
)  # fmt: skip
def test_a_file_that_is_read_as_text_says_so_too(file, old, new, said, capsys):
    assert SOURCE.count(old) == 1
    file(SOURCE.replace(old, new))
    with pytest.raises(UserError) as raised:
        interfaces.read("skeleton")
    assert str(raised.value) == FILE + said
    printable.complain_once.cache_clear()
    assert interfaces.known() == {}
    assert interfaces.known() == {}
    assert capsys.readouterr().err == f"study: {FILE}{said}: the other ops go on\n"


def test_a_board_case_like_another_or_an_impossible_one_costs_the_op_nothing(monkeypatch, capsys):
    printable.complain_once.cache_clear()
    alike = _whole.check("skeleton", dataclasses.replace(SKELETON, cases=two))
    said = f"study: {FILE}: 10x2x4x8-float64 is left out: KeyError('float64')\n"
    assert capsys.readouterr().err == said
    monkeypatch.setattr(ops, "load", lambda name: alike)
    (valid,) = ops.valid(["skeleton"], "board")
    assert [case.name for case in valid.tier("board", "cpu")] == ["36x64-float32-twin"]
    assert len(list(valid.tier("board", "cuda"))) == 2
