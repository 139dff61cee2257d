"""`study check --hint`: a path that real kernels walk, with hints that come one at a time."""

import re
import shutil

import pytest

from common import disk_cache, ops, paths
from common.commands import hint
from common.commands.grader import Grader
from common.errors import UserError
from common.grading.compiling import Compiler
from common.grading.fork_server import ForkServer
from common.spec import DIRECTIONS
from common.verdicts import VERDICTS
from tests.support.study import WRONG, one_line

CORPUS = paths.ROOT / "tests" / "corpus"
TEMPLATE = paths.CONTRIBUTORS / "_template"

PATH = hint.path().exercise
HINTS = hint.path().hint
TITLES = [each.title for each in PATH]
OPS = list(dict.fromkeys(each.op for each in PATH))


@pytest.fixture(scope="module")
def server():
    server = ForkServer("cpu")
    yield server
    server.close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path)


def test_exercises_ask_for_cases_that_there_are():
    for exercise in PATH:
        op = ops.load(exercise.op)
        assert any(hint.is_like(op, case, exercise.answers) for case in op.cases("smoke"))
        assert not exercise.measure or any(
            hint.is_like(op, case, exercise.where) for case in op.cases("board")
        )
        assert bool(exercise.measure) >= bool(exercise.where)
        assert exercise.measure in ("", *hint.MEASURES)


def test_the_page_lists_the_exercises_in_order():
    page = (paths.ROOT / "docs" / "exercises.md").read_text()
    listed = re.findall(r"^\| (\d+) \| `(\w+)` \| ([^|]+) \|", page, flags=re.MULTILINE)
    assert listed == [(str(place), each.op, each.title) for place, each in enumerate(PATH, 1)]


def test_a_hint_is_for_mistakes_of_its_op_verdicts_and_directions():
    for op in OPS:
        known = {*ops.load_mistakes(op), *VERDICTS, *DIRECTIONS}
        of = [each.of for each in HINTS if each.op == op]
        assert all(of) and set().union(*of) <= known


def test_hints_come_one_at_a_time_first_those_for_the_mistake(cache):
    exercise, fitting = PATH[1], HINTS[0]
    shown = [*exercise.hints, exercise.hints[0]]
    given = [hint.next_hint("alice", exercise) for _ in shown]
    for text, each in zip(given, shown, strict=True):
        assert text.partition(": ")[2].startswith(each)
    assert "again" in given[0] and "again" not in given[-2] and given[-1] == given[0]
    assert fitting.hint in hint.next_hint("alice", exercise, fitting.of)
    assert exercise.hints[1] in hint.next_hint("alice", exercise), "those given stay given"


def test_the_path_begins_with_a_file(study):
    ran = study("check", "nobody", "--hint")
    assert "nox -s new -- nobody rotate_half" in one_line(ran)
    refused = study("check", "nobody", "--hint", "--case", "2-float32")
    assert "leave --case out" in one_line(refused)


@pytest.fixture
def lacks(server, cache, tmp_path, monkeypatch):
    """What each exercise lacks in a folder, by title, of those whose op it has.

    The masked layers, whose smoke cases take a minute, are counted and not graded.
    """

    def lacks(folder, compiler=None):
        monkeypatch.setattr(paths, "CONTRIBUTORS", folder.parent)
        # on cuda it compiles nothing: kernels of the group compile
        files = hint.files_of(folder.name, Grader(server, compiler or Compiler("cuda")))
        for file in files:
            if file.solution.op.startswith("masked_"):
                cases = ops.load(file.solution.op).cases("smoke")
                answers = hint.Verdicts({case.name: {"forward": "PASSED"} for case in cases}, [])
                vars(file)["verdicts"] = answers
        found = {each.title: hint.lack_of(files, folder.name, each) for each in PATH}
        found = {title: lack or hint.Lack("") for title, lack in found.items()}
        return {title: lack for title, lack in found.items() if "there is no" not in lack.words}

    return lacks


def done(found):
    return [title for title, lack in found.items() if not lack.words]


def changed(path, changes):
    text = path.read_text()
    for old, new in changes.items():
        assert old in text, f"{path.name} has changed"
        text = text.replace(old, new)
    return text


SIGNED = {
    "HALF: tl.constexpr, BLOCK": "SIGN: tl.constexpr, HALF: tl.constexpr, BLOCK",
    "-x2, mask": "-SIGN * x2, mask",
    "lanes, x1, mask": "lanes, SIGN * x1, mask",
    "def _launch(x)": "def _launch(x, sign)",
    "(x, y, half": "(x, y, sign, half",
    "return _launch(x)": "return _launch(x, 1)",
    "return -_launch(grad)": "return _launch(grad, -1)",
}
"""What gives the template's rotate_half a backward in one kernel."""


@pytest.mark.slow
def test_the_path_leads_from_the_template_to_the_masked_layers(lacks, tmp_path):
    alice, another = tmp_path / "study" / "alice", paths.ROOT / "contributors" / "wkshin89"
    alice.mkdir(parents=True)
    shutil.copy(TEMPLATE / "rotate_half.py", alice)
    lack = lacks(alice)
    assert done(lack) == TITLES[:1]
    assert "1 of torch's operators" in lack["backward in one kernel"].words
    assert "UNSUPPORTED" in lack["both layouts"].words
    (alice / "rotate_half_signed.py").write_text(changed(TEMPLATE / "rotate_half.py", SIGNED))
    lack = lacks(alice)
    assert done(lack) == TITLES[:2], "any file of the op counts"
    assert "alice/rotate_half_signed: " in lack["whole tiles"].words, "the latest is diagnosed"
    for name in ("kernels.py", "rotate_half.py"):
        shutil.copy(another / name, alice)
    shutil.copy(TEMPLATE / "rope.py", alice)
    assert done(lacks(alice)) == TITLES[:5]
    shutil.copy(another / "rope.py", alice)
    assert done(lacks(alice)) == TITLES[:7]


@pytest.mark.slow
def test_the_masked_layers_of_the_template_and_of_the_group(lacks, tmp_path):
    alice = tmp_path / "study" / "alice"
    alice.mkdir(parents=True)
    for op in OPS[2:]:
        shutil.copy(TEMPLATE / f"{op}.py", alice)
    lack = lacks(alice)
    assert [*lack] == TITLES[7:] and not done(lack)
    assert "2 times the least FLOPs" in lack["one product for a tile of one kind"].words
    shutil.copytree(paths.ROOT / "contributors" / "wenhaoli_xmu", alice, dirs_exist_ok=True)
    assert done(lacks(alice)) == TITLES[7:]


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


@pytest.mark.slow
def test_what_does_not_compile_is_not_done(lacks):
    with Compiler("cpu") as compiler:
        lack = lacks(CORPUS / "wrong" / "a_type_of_each_branch", compiler)[TITLES[0]]
    assert "COMPILE_ERROR" in lack.words and "COMPILE_ERROR" in lack.signs


def test_the_next_exercise_of_an_op_is_shown_with_what_it_lacks(capsys, cache):
    def shown(done, op=None):
        lack = hint.Lack("it")
        hint.show("alice", lambda each: None if each in PATH[:done] else lack, op)
        return capsys.readouterr().out

    out = shown(3)
    assert f"alice: 3 of {len(PATH)} exercises are done." in out
    assert f"Exercise 4, rotate_half: {PATH[3].title}." in out and "Not yet: it." in out
    assert f"all {len(PATH)} exercises are done" in shown(len(PATH))
    assert "0 of 3 exercises" in shown(3, "rope")
    with pytest.raises(UserError, match="nope has no exercise: there are some of rotate_half, "):
        shown(0, "nope")
