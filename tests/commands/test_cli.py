"""The command line as its users meet it: exit codes, and what stands on stderr."""

import errno
import importlib
import shutil
from types import SimpleNamespace
from unittest import mock

import pytest

from common import cli, solutions
from common.commands import options as shared
from common.errors import ServerEnded, UserError
from common.grading.fork_server import NO_ANSWER
from tests.support.study import RIGHT, one_line

# --- bad input ------------------------------------------------------------------------------------

LINES = {
    "grade --op ropes": "ropes",
    "grade --only nobody": "house",
    "leaderboard --only nobody": "nobody",
    "list --only house/nothing": "house/nothing",
    "check hosue": "did you mean house?",
    "check house --wach": "did you mean --watch?",
    "chekc house": "did you mean check?",
    "compile house": "did you mean --only house?",
    "check house,lkm2835": "house,lkm2835",
    "check": "HANDLE",
    "check nobody --hint": "nox -s new -- nobody rotate_half",
    "check nobody --hint --case 2-float32": "leave --case and --lf out",
    "leaderboard": "run bench first",
    "leaderboard --json --compare": "not allowed with",
    "grade --tier large": "large",
    "grade --sample 0": "0",
    "grade --fast": "see python -m common grade --help",
    "grade --device tpu": "tpu",
    "": "COMMAND",
    "compile --only house --show code _kernel": "no stage code",
    "export --to nowhere/kernels": "HANDLE/FILE is missing",
    "export house/rope": "--to",
    "export house/rope --to nowhere/torch": "takes the folder's name",
    "export house/rope --to common": "is there already",
    "export house/nothing --to nowhere/kernels": "house/nothing",
    "export eager/rope --to nowhere/kernels": "the package torch",
    "bench --missing --address host:1": "leave --address out",
    "grade --address host:1 --device cpu": "leave --device cpu out",
    "tune": "HANDLE",
    "tune nobody": "nobody",
    "tune house": "tune needs a GPU",
    "profile house --device cpu": "profile needs a GPU",
    "tune house --device cuda": "no GPU",
    "new eager rope": "eager is the name of a peer",
    "new alice ropes": "ropes",
    "new ../alice rope": "../alice",
    "check contributors/house/ropee.py": "there are house/masked_ffn, ",
    "check house rope --op rotate_half": "OP is given twice",
    "check ./contributors/house/rope.py rope --case nothing": "no case nothing of rope",
    "check house rope_fast --script case.py": "name it with --case",
    "new alice": "OP is missing: give masked_ffn, ",
    "check house --device cuda": "no GPU",
    "grade --op rope --tier matrix": "needs a GPU",
    "grade --op rotate_half --sample 1 --json nowhere/at/all.json": "nowhere/at/all.json",
}
MISSING = {"leaderboard": "rich", "bench": "msgspec", "grade": "torch", "check house": "triton",
           "check house --watch": "watchfiles", "grade --address host:1": "ray"}  # fmt: skip


@pytest.mark.parametrize(("arguments", "says"), LINES.items(), ids=LINES)
@pytest.mark.slow
def test_bad_input_gets_one_line(study, arguments, says):
    assert says in one_line(study(*arguments.split()))


@pytest.mark.parametrize(("command", "package"), MISSING.items())
@pytest.mark.slow
def test_a_missing_package_is_named(study, command, package):
    line = one_line(study(*command.split(), hidden=package))
    assert f"package {package} is missing" in line


# --- folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "shows"),
    [("list", "house/rope"), ("leaderboard --json", "house/rope"), ("new carol rope", "carol")],
)
def test_a_folder_that_cannot_be_a_handle_stops_nobody_and_cannot_be_chosen(
    study, by_hand, recorded, repository, command, shows
):
    by_hand("al,ice", RIGHT)
    by_hand("김철수", RIGHT)
    ran = study(*command.split())
    shutil.rmtree(repository / "contributors" / "carol", ignore_errors=True)
    assert shows in ran.out and ran.code == 0
    assert "contributors/al,ice is left out: rename the folder" in one_line(ran._replace(code=2))
    assert study("list", "--only", "al ice").code == 2


@pytest.mark.parametrize(("files", "says"), [((), "bob has no"), (["help.py"], "only help.py")])
def test_a_folder_without_a_solution_says_how_to_name_one(monkeypatch, tmp_path, files, says):
    (tmp_path / "bob").mkdir()
    for name in files:
        (tmp_path / "bob" / name).touch()
    monkeypatch.setattr(solutions, "CONTRIBUTORS", tmp_path)
    with pytest.raises(UserError, match=f"{says}.*: name a file OP.py or OP_NAME.py"):
        solutions.select([], None, "bob")


@pytest.mark.parametrize("select", [shared.chosen, shared.contributors])
@pytest.mark.parametrize(("only", "told"), [(None, True), ("alice", True), ("bob", False)])
def test_a_helper_that_is_named_like_a_solution_is_said(
    monkeypatch, tmp_path, capsys, select, only, told
):
    for name in ("alice/rope", "alice/rope_triton", "bob/rope"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text("import rope_triton\n\ndef rope(): ...")
    (tmp_path / "alice" / "rope_triton.py").write_text("def launch(): ...")
    monkeypatch.setattr(solutions.discover, "__defaults__", (tmp_path,))
    found = select(SimpleNamespace(op="rope", only=only))
    assert "alice/rope_triton" not in [solution.name for solution in found]
    line = "study: alice/rope_triton.py is a helper: it has no rope, and rope.py imports it\n"
    assert capsys.readouterr().err == line * told


def test_one_file_that_nothing_can_parse_harms_no_listing(study, by_hand):
    by_hand("deep", "-" * 100_000 + "1")
    by_hand("torn", "def rotate_half(:")
    ran = study("list", hidden="torch triton numpy rich")
    assert ran.code == 0, ran.err
    assert "deep/rotate_half" in ran.out and "house/rope" in ran.out
    (eager,) = (line for line in ran.out.splitlines() if line.startswith("eager"))
    assert "absent: the package torch is not installed" in eager


# --- errors and help ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), "a/b: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), "a/b: No space left"),
        (ServerEnded(NO_ANSWER), "--verbose shows why"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "the output: Broken pipe"),
        (RuntimeError("CUDA out of memory. Tried to allocate 1 GiB."), "than the GPU has free"),
        (ZeroDivisionError(), None),
    ],
)
def test_an_error_that_no_command_can_mend_is_one_line_and_a_fault_is_raised(
    monkeypatch, capsys, error, says
):
    monkeypatch.setattr(solutions, "everyone", mock.Mock(side_effect=error))
    with pytest.raises(SystemExit if says else type(error)) as ended:
        cli.main(["list"])
    if says:
        assert ended.value.code == 2
        assert says in capsys.readouterr().err


def test_help_lists_the_commands_and_needs_no_package(study):
    ran = study("--help", hidden="torch triton numpy msgspec rich watchfiles")
    assert ran.code == 0, ran.err
    listed = [line.split()[0] for line in ran.out.splitlines() if line.startswith("    ")]
    names = "list grade check bench leaderboard export compile sanitize tune profile new".split()
    assert [word for word in listed if word in names] == names == list(cli.COMMANDS)
    text = " ".join(ran.out.split())
    for name in cli.COMMANDS:
        command = importlib.import_module(f"common.commands.{name}")
        assert f"{name} {command.run.__doc__}" in text
        assert command.run.__doc__.count("\n") == 0
