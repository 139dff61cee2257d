"""`study check --hint`: a path that real kernels walk, with hints that come one at a time."""

import pytest

from common import kept, ops, paths
from common.commands import hint
from common.errors import UserError
from common.grading.compiling import Compiler
from common.grading.fork_server import ForkServer
from common.solutions import python_files
from tests.support.study import one_line

CORPUS = paths.ROOT / "tests" / "corpus"

PATH = hint.path()


@pytest.fixture(scope="module")
def server():
    server = ForkServer("cpu")
    yield server
    server.close()


@pytest.fixture(scope="module")
def compiler():
    with Compiler("cuda") as compiler:  # which compiles nothing: kernels of the group compile
        yield compiler


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "CACHE", tmp_path)


@pytest.mark.parametrize("exercise", PATH, ids=lambda each: each.title)
def test_an_exercise_asks_for_cases_that_there_are(exercise):
    op = ops.load(exercise.op)
    assert any(hint._is_like(op, case, exercise.answers) for case in op.cases("smoke"))
    assert not exercise.where or exercise.measure
    if exercise.measure:
        assert exercise.measure in hint.MEASURES
        assert any(hint._is_like(op, case, exercise.where) for case in op.cases("board"))


def test_no_hint_is_a_line_of_a_solution():
    folders = [folder for folder in paths.CONTRIBUTORS.iterdir() if folder.is_dir()]
    lines = {
        line.strip() for f in folders for path in python_files(f)
        for line in path.read_text().splitlines() if len(line.strip()) > 12
    }  # fmt: skip
    hints = "\n".join(each for exercise in PATH for each in (exercise.task, *exercise.hints))
    assert lines and not [line for line in lines if line in hints]


def test_hints_come_one_at_a_time_and_begin_again_after_the_last(cache):
    exercise = PATH[1]
    given = [hint._hint("alice", 1, exercise) for _ in range(len(exercise.hints) + 1)]
    shown = [*exercise.hints, exercise.hints[0]]
    assert [text.partition(": ")[2].startswith(each) for text, each in
            zip(given, shown, strict=True)] == [True] * 4  # fmt: skip
    assert "again" in given[0] and "again" not in given[-2] and given[-1] == given[0]
    assert hint._hint("bob", 1, exercise) == given[0]


def test_the_path_begins_with_a_file(study):
    ran = study("check", "nobody", "--hint")
    assert "nox -s new -- nobody rotate_half" in one_line(ran)


class Passing(dict):
    """Verdicts of a solution that passes whatever it is asked."""

    def get(self, *_):
        return {"PASSED"}


def lacks(handle, server, compiler):
    """Return what each exercise lacks of those whose op the folder has, by title.

    The masked layers, whose smoke cases take a minute, are counted and not graded.
    """
    progress = hint.Progress(handle, server, compiler)
    progress._verdicts |= {"masked_linear": Passing(), "masked_ffn": Passing()}
    found = {each.title: progress.lacks(each) for each in PATH}
    return {title: text for title, text in found.items() if "there is no" not in text}


@pytest.mark.slow
def test_the_template_has_done_what_it_shows_and_nothing_else(server, compiler, cache):
    found = lacks("_template", server, compiler)
    assert len(found) == len(PATH)
    done = {title for title, text in found.items() if not text}
    assert done == {"a kernel that passes", "rotary position embedding"}
    assert "1 of torch's operators" in found["backward in one kernel"]
    assert "UNSUPPORTED" in found["both layouts"]
    assert "2 times the least FLOPs" in found["one product for a tile of one kind"]


@pytest.mark.slow
@pytest.mark.parametrize("handle", ["wkshin89", "wenhaoli_xmu"])
def test_kernels_of_the_group_have_done_the_exercises_of_their_ops(handle, server, compiler, cache):
    found = lacks(handle, server, compiler)
    assert len(found) == {"wkshin89": 7, "wenhaoli_xmu": 3}[handle]
    assert not any(found.values()), found


@pytest.mark.slow
def test_what_does_not_compile_is_not_done(server, cache, monkeypatch):
    broken = CORPUS / "wrong"
    monkeypatch.setattr(paths, "CONTRIBUTORS", broken)
    with Compiler("cpu") as compiler:
        lacking = hint.Progress("a_type_of_each_branch", server, compiler).lacks(PATH[0])
    assert "COMPILE_ERROR" in lacking


def test_the_exercises_of_one_op_are_walked_alone(monkeypatch, capsys):
    monkeypatch.setattr(hint.Progress, "lacks", lambda *_: "it")
    assert not hint.show("alice", None, None, "rope")
    assert "0 of 3 exercises" in capsys.readouterr().out
    with pytest.raises(UserError, match="nope has no exercise: there are some of rotate_half, "):
        hint.show("alice", None, None, "nope")


def test_the_next_exercise_is_shown_with_what_it_lacks(monkeypatch, capsys, cache):
    monkeypatch.setattr(hint.Progress, "lacks", lambda self, each: "" if each in PATH[:3] else "it")
    assert not hint.show("alice", None, None)
    out = capsys.readouterr().out
    assert f"alice: 3 of {len(PATH)} exercises are done." in out
    assert f"Exercise 4, rotate_half: {PATH[3].title}." in out and "Not yet: it." in out
    monkeypatch.setattr(hint.Progress, "lacks", lambda *_: "")
    assert hint.show("alice", None, None)
    assert f"all {len(PATH)} exercises are done" in capsys.readouterr().out
