"""`study check --hint`: a path that real kernels walk, with hints that come one at a time."""

import re
import shutil
from types import SimpleNamespace

import pytest

from common import disk_cache, ops, paths
from common.commands import hint
from common.commands.grader import Grader
from common.errors import UserError
from common.grading.compiling import Compiler
from common.spec import DIRECTIONS
from common.verdicts import VERDICTS
from tests.support.study import WRONG

PATH = hint.path().exercise
HINTS = hint.path().hint
CPU = SimpleNamespace(device="cpu")
TITLES = [each.title for each in PATH]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path)


def test_exercises_ask_for_cases_that_there_are_and_hints_are_for_what_an_op_knows():
    for exercise in PATH:
        op = ops.load(exercise.op)
        assert any(hint.is_like(op, case, exercise.answers) for case in op.cases("smoke"))
        assert any(hint.is_like(op, case, exercise.where) for case in op.cases("board"))
        assert exercise.measure in hint.MEASURES or not (exercise.measure or exercise.where)
        known = {*ops.load_mistakes(exercise.op), *VERDICTS, *DIRECTIONS}
        of = [each.of for each in HINTS if each.op in ("", exercise.op)]
        assert all(of) and set().union(*of) <= known
        assert hint.hints_of(exercise.op, {"RUNTIME_ERROR"}) == [HINTS[0].hint], "once for all ops"
    assert hint.path().measure.keys() == hint.MEASURES.keys()
    page = (paths.ROOT / "docs" / "exercises.md").read_text()
    listed = re.findall(r"^\| (\d+) \| `(\w+)` \| ([^|]+) \|", page, flags=re.MULTILINE)
    assert listed == [(str(place), each.op, each.title) for place, each in enumerate(PATH, 1)]


def test_hints_come_one_at_a_time_first_those_for_the_mistake(cache):
    exercise, fitting = PATH[1], HINTS[0]
    shown = [*exercise.hints, exercise.hints[0]]
    given = [hint.next_hint("alice", exercise) for _ in shown]
    for text, each in zip(given, shown, strict=True):
        assert text.partition(": ")[2].startswith(each)
    assert "again" in given[0] and "again" not in given[-2] and given[-1] == given[0]
    assert fitting.hint in hint.next_hint("alice", exercise, fitting.of)
    next_hint = hint.next_hint("alice", exercise, watched=True)
    assert exercise.hints[1] in next_hint, "those given stay given"
    assert next_hint.endswith(" The next save shows the next one.")


@pytest.fixture
def lacks(fork_server, cache, tmp_path, monkeypatch):
    """What each exercise lacks in a folder, by title, of those whose op it has."""

    def lacks(folder):
        monkeypatch.setattr(paths, "CONTRIBUTORS", folder.parent)
        # on cuda it compiles nothing: kernels of the group compile
        files = hint.files_of(folder.name, Grader(fork_server, Compiler("cuda")))
        found = {each.title: hint.lack_of(files, folder.name, each) for each in PATH}
        found = {title: lack or hint.Lack("") for title, lack in found.items()}
        return {title: lack for title, lack in found.items() if "there is no" not in lack.words}

    return lacks


def done(found):
    return [title for title, lack in found.items() if not lack.words]


@pytest.mark.slow
def test_the_path_leads_from_the_template_to_a_kernel_of_the_group(lacks, tmp_path):
    alice, another = tmp_path / "study" / "alice", paths.CONTRIBUTORS / "wkshin89"
    alice.mkdir(parents=True)
    shutil.copy(paths.CONTRIBUTORS / "_template" / "rotate_half.py", alice)
    lack = lacks(alice)
    assert done(lack) == TITLES[:1]
    assert "1 of torch's operators" in lack["backward in one kernel"].words
    assert "UNSUPPORTED" in lack["both layouts"].words
    (alice / "rotate_half_other.py").write_text("from rotate_half import rotate_half\n")
    assert "alice/rotate_half_other: " in lacks(alice)["whole tiles"].words, "the latest"
    for name in ("kernels.py", "rotate_half.py"):
        shutil.copy(another / name, alice)
    assert done(lacks(alice)) == TITLES[:4], "any file of the op counts"


@pytest.mark.slow
def test_a_wrong_file_is_told_by_its_mistake_and_run_once(lacks, tmp_path, monkeypatch):
    alice = tmp_path / "study" / "alice"
    alice.mkdir(parents=True)
    (alice / "rotate_half.py").write_text(WRONG)
    first = lacks(alice)[TITLES[0]]
    assert "INCORRECT_NUMERICAL" in first.words
    assert "forward and backward: nothing is negated" in first.words
    assert first.signs == {"nothing is negated: [x2, x1]", "INCORRECT_NUMERICAL"}
    monkeypatch.setattr(Grader, "smoke_cases", None)
    assert lacks(alice)[TITLES[0]] == first


@pytest.mark.parametrize(
    ("verdict", "told"),
    [("RUNTIME_ERROR", "Read the exception"), ("INCORRECT_NUMERICAL", "Where forward is right")],
)
def test_an_exception_in_backward_is_told_from_wrong_values(verdict, told):
    op, file = ops.load("rotate_half"), hint.File(SimpleNamespace(name="a/b"), CPU)
    file.__dict__["verdicts"] = {"mistakes": [], "cases": {
        case.name: {"forward": "PASSED", "backward": verdict} for case in op.cases("smoke")
    }}  # fmt: skip
    first, *others = hint.hints_of(op.name, file._wrong(op, PATH[1]).signs)
    assert first.startswith(told) and not others


def test_the_next_exercise_of_an_op_is_shown_with_what_it_lacks(monkeypatch, capsys, cache):
    def shown(done, op=None, before="", signs=frozenset(), watch=False):
        lack = hint.Lack("it", signs)
        monkeypatch.setattr(hint, "lack_of", lambda *of: None if of[2] in PATH[:done] else lack)
        hint.run(None, SimpleNamespace(only="alice", op=op, watch=watch), before)
        return capsys.readouterr().out

    assert f"Exercise 1, rotate_half: {TITLES[0]}." in shown(3), "it was not read yet"
    out = shown(3)
    assert f"alice: 3 of {len(PATH)} exercises are done." in out
    assert f"  ✓  3 rotate_half   {TITLES[2]}\n  >  4 rotate_half   {TITLES[3]}\n     5 rope" in out
    assert f"Exercise 4, rotate_half: {PATH[3].title}." in out and "Not yet: it." in out
    assert shown(3, before=TITLES[3]).startswith("Not yet: it.\nHint 2 of"), "after a save"
    for watch, where in {True: "see above", False: "`nox -s check -- alice` says where"}.items():
        assert f"Not yet: it; {where}." in shown(3, signs={"TIMEOUT"}, watch=watch)
    out = shown(2, before=TITLES[3])
    assert out.startswith("Exercise 4 waits: first mend what passed before.\nNot yet: it.\n")
    end = shown(len(PATH))
    assert f"all {len(PATH)} exercises are done. Well done!\nNext: contributors/steps" in end
    assert "0 of 3 exercises" in shown(3, "rope")
    with pytest.raises(UserError, match="nope has no exercise: there are some of rotate_half, "):
        shown(0, "nope")
