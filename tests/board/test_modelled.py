"""Boards of modelled times, and modelled times beside measured ones, with numbers by hand."""

import dataclasses
import re

import msgspec
import pytest
from msgspec.structs import replace

from common import paths
from common.board import model, modelled, terminal
from common.board.devices import ranked
from common.board.ranking import About
from common.peaks import PEAKS
from common.records.lines import Counted, Operator, Selection
from common.records.runs import Results
from tests.support.boards import RUN, counted, launch, printed, row

H200 = PEAKS["NVIDIA H200"]
CPU = replace(RUN, device="cpu", device_name="a laptop", selection=Selection())
ABOUT = {f"{name}/rope": About(name, "s1") for name in ("alice", "bob", "eager")}


def copies(times):
    """An operator that moves 256 MiB so many times."""
    return Operator(operator="copy", read=times << 27, written=times << 27, dtype="bfloat16")


def twin(solution, **fields):
    fields = {"case": "c1-twin", "twin": True, "gpu": {}, "host": {}} | fields
    return row(solution, **fields)


IDLE = launch(read=0, written=0)
"""The sample has none of the programs that do the work."""
COUNTS = [counted("alice/rope", launch()), counted("eager/rope", copies(4), peer=True)]
TWINS = [twin("alice/rope"), twin("bob/rope"), twin("eager/rope", peer=True)]
UNTIMED = Results(path=None, runs=[CPU], rows=TWINS, counted=COUNTS)


def test_rows_without_times_get_those_of_their_true_case():
    alice, bob, eager = modelled.with_modelled_times(UNTIMED)[0].latest()
    assert {each.case for each in (alice, bob, eager)} == {"c1"} and not alice.twin
    assert alice.gpu["solution"].value == model.gpu_time([launch()], H200)
    assert alice.gpu["eager"].value == eager.gpu["solution"].value
    assert [each.modelled for each in (alice, bob, eager)] == ["NVIDIA H200", "", "NVIDIA H200"]
    assert alice.bytes == COUNTS[0].bytes
    assert (bob.verdict, bob.reason) == ("UNSUPPORTED", "not counted")


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [({"counted": [counted("alice/rope"), COUNTS[1]]}, "UNSUPPORTED"),  # or infinitely fast
     ({"counted": [counted("alice/rope", IDLE), COUNTS[1]]}, "UNSUPPORTED"),
     ({"rows": [twin("alice/rope", verdict="TIMEOUT"), *TWINS[1:]]}, "TIMEOUT")],
)  # fmt: skip
def test_neither_a_failure_nor_a_call_without_a_counted_step_has_a_modelled_time(changed, verdict):
    alice = modelled.with_modelled_times(dataclasses.replace(UNTIMED, **changed))[0].latest()[0]
    assert alice.verdict == verdict and not alice.gpu


def test_one_contributor_sees_the_neighbours():
    """The leader and the last are no neighbours of hers."""
    speeds = {"bob/rope": 30.0, "alice/rope": 120.0, "dave/rope": 500.0, "erin/rope": 900.0}
    gpu = replace(RUN, device_name=model.DEFAULT)
    timed = [row(name, us=[us], eager=1000.0, copy=130.0) for name, us in speeds.items()]
    other = row("bob/rotate_half", op="rotate_half")
    board = Results(path=None, runs=[gpu], rows=[*timed, other], counted=[])
    about = {name: About(name, "s1") for name in ("bob/rotate_half", *speeds)}
    text = printed(160, terminal.show, ranked(board, about), only="alice")
    names = [line.split()[0] for line in text.splitlines() if "/rope" in line]
    assert names == ["bob/rope", "alice/rope", "dave/rope"] and "rotate_half" not in text
    assert printed(160, terminal.show, ranked(board, about), only="carol") == ""


def test_a_folder_alone_is_told_so_and_its_place_among_the_measured_in_the_words_of_check():
    timed = [row(f"{name}/rope", us=us) for name, us in {"fast": 6.0, "slow": 40.0}.items()]
    boards = ranked(dataclasses.replace(UNTIMED, rows=TWINS[:1]), ABOUT), ranked(UNTIMED, ABOUT)
    alone, text = (printed(200, terminal.show, each, only="alice", measured=timed)
                   for each in boards)  # fmt: skip
    words = terminal.PLACE.format("alice/rope", terminal.modelled_place(COUNTS[:1], timed))
    assert alone.endswith(f"{words}\n") and text.endswith(f"{words}\n") and "1 of 3" in words
    assert "only alice is recorded here: " in alone and "only alice" not in text


def shown(results):
    return printed(160, terminal.show, ranked(results, ABOUT))


def test_the_board_without_a_gpu_is_ranked_and_labelled():
    text = shown(UNTIMED)
    assert "rope: core, modelled for NVIDIA H200" in text and "Nothing was timed" in text
    alice = next(line for line in text.splitlines() if "alice/rope" in line)
    assert alice.split()[:2] == ["alice/rope", "1."]


@pytest.mark.parametrize(("kernels", "places"), [(1, "1=."), (2, "2.")])
@pytest.mark.parametrize(("clock", "error"),
                         [("gpu", "GPU times are off by some 10%"),
                          ("host", "host times are off by some 20%")])  # fmt: skip
def test_within_the_models_error_solutions_share_a_place_and_nobody_was_timed(
    clock, error, kernels, places
):
    """Bob's kernel moves 5 % more than alice's, or is a second one."""
    more = launch(read=int(1.05 * (1 << 27)))
    eager = counted("eager/rope", *[copies(1)] * 16, peer=True)
    counts = [counted("bob/rope", *[more] * kernels), COUNTS[0], eager]
    rows = [replace(each, ranked_by=clock) for each in TWINS]
    results = dataclasses.replace(UNTIMED, rows=rows, counted=counts)
    *table, line = printed(300, terminal.show_cases, ranked(results, ABOUT)).splitlines()
    bob = next(each for each in table if each.startswith("bob/rope"))
    assert bob.split()[1] == places and "±" in bob
    time = model.host_time(COUNTS[0]) if clock == "host" else model.gpu_time([launch()], H200)
    time = f"{round(time) / 1000:g} ms (nothing was measured, {error}); "
    words = f"rope c1 forward: alice/rope is modelled as fastest, about {time}"
    assert line.startswith(words + "the best of the installed peers, (eager/rope), takes ")


@pytest.mark.parametrize(("kind", "clock"), [("kernels", "gpu"), ("the host's times", "host")])
def test_the_models_error_is_that_of_its_page(kind, clock):
    page = (paths.ROOT / "docs" / "model.md").read_text(encoding="utf-8")
    measured = float(re.findall(rf"\| {kind} \| \d+ \| ([\d.]+)% \|", page)[0])
    assert 100 * model.ERROR[clock] == pytest.approx(measured, abs=2)


def test_neither_what_is_not_counted_nor_what_was_measured_is_modelled():
    text = shown(dataclasses.replace(UNTIMED, counted=[]))
    assert "modelled" not in text and "Nothing was timed" in text
    rows = [row("alice/rope"), row("eager/rope")]
    text = shown(Results(path=None, runs=[RUN], rows=rows, counted=COUNTS))
    assert "modelled" not in text and "50.0%" in text


def test_work_is_held_against_the_least():
    (table,) = modelled.work_tables(COUNTS, ABOUT)
    assert table.rows == (
        ("alice/rope", "1.00", "1.00", "–", "1", "0"),
        ("(eager/rope)", "4.00", "–", "–", "0", "1"),
    )
    twice = launch(fetched=1 << 28, flops={"bf16": 18})
    (table,) = modelled.work_tables([counted("alice/rope", twice, copies(1))], ABOUT)
    assert table.rows == (("alice/rope", "2.00", "2.00", "2.00", "1", "1"),)


def test_a_count_below_the_least_is_no_fact():
    """No right call takes less than a copy, nor moves less."""
    wide = replace(IDLE, uncertain=9.0)
    rough = [counted("alice/rope", wide), COUNTS[1]]
    alice = modelled.with_modelled_times(dataclasses.replace(UNTIMED, counted=rough))[0].latest()[0]
    time, limit = alice.gpu["solution"], model.limits(rough[0], H200)["copy"]
    assert (time.value, time.low) == (limit, limit) and time.high > 3 * limit
    assert modelled.share(counted("alice/rope", IDLE), H200) == 0
    (table,) = modelled.work_tables(rough[:1], ABOUT)
    assert table.rows[0][1:3] == ("~1.00", "~–")


@pytest.mark.parametrize("share", [0.1, 2.0])
def test_an_uncertain_count_is_no_fact(share):
    """The time has an interval, and the work a mark."""
    rough = [counted("alice/rope", launch(uncertain=share), copies(1)), COUNTS[1]]
    alice = modelled.with_modelled_times(dataclasses.replace(UNTIMED, counted=rough))[0].latest()[0]
    time, alone = alice.gpu["solution"], model.gpu_time([launch()], H200)
    off = share * alone + model.ERROR["gpu"] * time.value
    assert time.high - time.value == pytest.approx(off) and time.low > 0
    (table,) = modelled.work_tables(rough, ABOUT)
    assert [row[1][0] for row in table.rows] == ["~", "4"]


def test_a_line_of_an_older_checkout_states_more_and_is_read():
    line = counted("alice/rope", launch())
    older = msgspec.to_builtins(line)
    older["steps"][0] |= {"read_least": 9, "written_least": 9}
    assert msgspec.convert(older, Counted) == line
