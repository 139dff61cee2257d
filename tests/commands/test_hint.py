"""`study check --hint`: a path that real kernels walk, with hints that come one at a time."""

import re
import shutil
from types import SimpleNamespace

import pytest

from common import disk_cache, ops, paths
from common.commands import hint
from common.errors import UserError
from common.grading import diagnosis
from common.grading.compiling import Compiler
from common.grading.fork_server import ForkServer
from common.solutions import Solution, python_files
from tests.support.study import WRONG, one_line

CORPUS = paths.ROOT / "tests" / "corpus"
TEMPLATE = paths.CONTRIBUTORS / "_template"

PATH = hint.path()
TITLES = [each.title for each in PATH]
OPS = list(dict.fromkeys(each.op for each in PATH))


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
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path)


@pytest.mark.parametrize("exercise", PATH, ids=lambda each: each.title)
def test_an_exercise_asks_for_cases_that_there_are(exercise):
    op = ops.load(exercise.op)
    assert any(hint._is_like(op, case, exercise.answers) for case in op.cases("smoke"))
    assert not exercise.where or exercise.measure
    if exercise.measure:
        assert exercise.measure in hint.MEASURES
        assert any(hint._is_like(op, case, exercise.where) for case in op.cases("board"))


def test_the_page_lists_the_exercises_in_order():
    page = (paths.ROOT / "docs" / "exercises.md").read_text()
    listed = re.findall(r"^\| (\d+) \| `(\w+)` \| ([^|]+) \|", page, flags=re.MULTILINE)
    assert listed == [(str(place), each.op, each.title) for place, each in enumerate(PATH, 1)]


@pytest.mark.parametrize("op", OPS)
def test_a_hint_for_a_cause_goes_by_words_that_check_says(op):
    said = [*ops.load_mistakes(op), "OUT_OF_BOUNDS", "NONDETERMINISTIC", "the gradient of x wrong"]
    said.append("does not take interleaved")
    assert hint.causes(op)
    for words in hint.causes(op):
        assert any(words in each for each in said), f"check never says {words!r}"


def test_no_hint_is_a_line_of_a_solution():
    folders = [folder for folder in paths.CONTRIBUTORS.iterdir() if folder.is_dir()]
    lines = {
        line.strip() for f in folders for path in python_files(f)
        for line in path.read_text().splitlines() if len(line.strip()) > 12
    }  # fmt: skip
    told = [cause for op in OPS for cause in hint.causes(op).values()]
    told += [each for exercise in PATH for each in (exercise.task, *exercise.hints)]
    hints = "\n".join(told)
    assert lines and not [line for line in lines if line in hints]


def test_hints_come_one_at_a_time_and_begin_again_after_the_last(cache):
    exercise = PATH[1]
    given = [hint._hint("alice", exercise) for _ in range(len(exercise.hints) + 1)]
    shown = [*exercise.hints, exercise.hints[0]]
    assert [text.partition(": ")[2].startswith(each) for text, each in
            zip(given, shown, strict=True)] == [True] * 4  # fmt: skip
    assert "again" in given[0] and "again" not in given[-2] and given[-1] == given[0]
    assert hint._hint("bob", exercise) == given[0]


def test_a_hint_for_what_check_says_comes_before_the_others(cache):
    exercise = PATH[0]
    (words, fitting), *_ = hint.causes(exercise.op).items()
    assert exercise.hints[0] in hint._hint("alice", exercise)
    assert fitting in hint._hint("alice", exercise, f"forward: {words}: [x2, -x1]")
    assert exercise.hints[1] in hint._hint("alice", exercise, words), "those given stay given"


def test_the_path_begins_with_a_file(study):
    ran = study("check", "nobody", "--hint")
    assert "nox -s new -- nobody rotate_half" in one_line(ran)
    refused = study("check", "nobody", "--hint", "--case", "2-float32")
    assert "leave --case out" in one_line(refused)


class Passing(dict):
    """Answers of a solution that passes whatever it is asked."""

    def get(self, *_):
        return ["PASSED"]


@pytest.fixture
def lacks(server, compiler, cache, tmp_path, monkeypatch):
    """What each exercise lacks in a folder, by title, of those whose op it has.

    The masked layers, whose smoke cases take a minute, are counted and not graded.
    """

    def lacks(folder):
        monkeypatch.setattr(paths, "CONTRIBUTORS", folder.parent)
        progress = hint.Progress(folder.name, server, compiler)
        for file in python_files(folder):
            if file.stem.startswith("masked_"):
                progress._answers[f"{folder.name}/{file.stem}"] = Passing()
        found = {exercise.title: progress.lacks(exercise) for exercise in PATH}
        words = {title: lack.words if lack else "" for title, lack in found.items()}
        return {title: text for title, text in words.items() if "there is no" not in text}

    return lacks


def done(found):
    return [title for title, text in found.items() if not text]


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
    assert "1 of torch's operators" in lack["backward in one kernel"]
    assert "UNSUPPORTED" in lack["both layouts"]
    (alice / "rotate_half_signed.py").write_text(changed(TEMPLATE / "rotate_half.py", SIGNED))
    lack = lacks(alice)
    assert done(lack) == TITLES[:2], "any file of the op counts"
    assert "alice/rotate_half_signed: " in lack["whole tiles"], "the latest is diagnosed"
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
    assert "2 times the least FLOPs" in lack["one product for a tile of one kind"]
    shutil.copytree(paths.ROOT / "contributors" / "wenhaoli_xmu", alice, dirs_exist_ok=True)
    assert done(lacks(alice)) == TITLES[7:]


@pytest.mark.slow
def test_a_wrong_file_is_told_by_its_mistake_and_run_once(lacks, tmp_path, server):
    alice = tmp_path / "study" / "alice"
    alice.mkdir(parents=True)
    (alice / "rotate_half.py").write_text(WRONG)
    first = lacks(alice)["a kernel that passes"]
    assert "INCORRECT_NUMERICAL" in first and "forward and backward: nothing is negated" in first
    fitting = hint.causes("rotate_half")["nothing is negated"]
    lack = hint.Progress("alice", server, None).lacks(PATH[0])  # with no compiler, as nothing runs
    assert lack.words == first and fitting in hint._hint("alice", PATH[0], lack.output)


def test_only_cases_that_the_machine_may_have_failed_are_run_again(server, cache, monkeypatch):
    runs = []

    def grade(solutions, server, memory, only):
        runs.append(only)
        verdicts = ["PASSED", "TIMEOUT", *["INCORRECT_NUMERICAL"] * (len(only) - 2)]
        yield from map(answer, sorted(only), verdicts)

    def answer(name, verdict):
        return SimpleNamespace(
            case=SimpleNamespace(name=name[1]),
            verdicts={"forward": SimpleNamespace(verdict=verdict, reason="")},
        )

    monkeypatch.setattr(hint.smoke, "grade_smoke_cases", grade)
    monkeypatch.setattr(hint.smoke, "compiled", lambda cases, compiler: cases)
    monkeypatch.setattr(diagnosis, "causes", lambda graded: [])
    solution = Solution(TEMPLATE / "rotate_half.py", "rotate_half")
    for _ in range(2):
        hint.Progress("_template", server, None)._answers_of(solution)
    assert len(runs) == 2 and runs[1] == {sorted(runs[0])[1]}


@pytest.mark.slow
def test_what_does_not_compile_is_not_done(server, cache, monkeypatch):
    broken = CORPUS / "wrong"
    monkeypatch.setattr(paths, "CONTRIBUTORS", broken)
    with Compiler("cpu") as compiler:
        lacking = hint.Progress("a_type_of_each_branch", server, compiler).lacks(PATH[0])
    assert "COMPILE_ERROR" in lacking.words


def test_the_exercises_of_one_op_are_walked_alone(monkeypatch, capsys):
    monkeypatch.setattr(hint.Progress, "lacks", lambda *_: hint.Lack("it"))
    assert not hint.show("alice", None, None, "rope")
    assert "0 of 3 exercises" in capsys.readouterr().out
    with pytest.raises(UserError, match="nope has no exercise: there are some of rotate_half, "):
        hint.show("alice", None, None, "nope")


def test_the_next_exercise_is_shown_with_what_it_lacks(monkeypatch, capsys, cache):
    lack = hint.Lack("it")
    monkeypatch.setattr(hint.Progress, "lacks", lambda self, each: each not in PATH[:3] and lack)
    assert not hint.show("alice", None, None)
    out = capsys.readouterr().out
    assert f"alice: 3 of {len(PATH)} exercises are done." in out
    assert f"Exercise 4, rotate_half: {PATH[3].title}." in out and "Not yet: it." in out
    monkeypatch.setattr(hint.Progress, "lacks", lambda *_: None)
    assert hint.show("alice", None, None)
    assert f"all {len(PATH)} exercises are done" in capsys.readouterr().out
