"""Ranked boards as text: tables, Markdown, the terminal and the README."""

import dataclasses
import os
from unittest import mock

import pytest
from msgspec.structs import replace

from common.board import markdown, table, terminal
from common.board.columns import ranking
from common.board.ranking import rank
from common.board.table import About
from common.errors import UserError
from common.records.runs import Results
from tests.support.boards import ABOUT, ROWS, RUN, TIMED, failed, printed, row
from tests.support.markdown import columns


def drawn(timed=True):
    (track,) = rank(row for row in ROWS if row.solution in ABOUT)
    return ranking(track, ABOUT, timed)


def test_a_row_says_place_speed_share_coverage_error_note_and_that_its_source_changed():
    alice, eager, bob = drawn().rows
    assert alice == (
        "1", "alice/rope", "2.00", "50% of copy (c1)", "1/1", "0.50", "tiles | pipes",
    )  # fmt: skip
    assert eager[:3] == ("2", "(eager/rope)", "1.00")
    assert bob == (
        "–", f"bob/rope{table.STALE}", "–", "–", "0/1", "", "TIMEOUT: a | b (c1 forward)",
    )  # fmt: skip
    assert any(table.STALE in footnote for footnote in drawn().footnotes)


def test_a_row_of_a_throttled_or_shared_device_says_so():
    state = {"throttled": ["power cap", "hardware slowdown"], "others": 2}
    rows = [row(device_state=state), row("bob/rope", us=20.0, device_state={"throttled": []})]
    (track,) = rank(rows)
    drawn = ranking(track, ABOUT, timed=True)
    assert [cells[1] for cells in drawn.rows] == [
        f"alice/rope{table.DISTURBED}",
        f"bob/rope{table.STALE}",
    ]
    note = drawn.footnotes[-1]
    assert (
        "hardware slowdown, shared with 2 other processes (1 of the table's 2 timed rows)" in note
    )
    assert "measured in part on a throttled, shared or disturbed GPU: " in note
    (times,) = table.times(track)
    assert [cells[1] for cells in times.rows[:2]] == [f"10.0{table.DISTURBED}", "20.0"]


def test_a_footnote_tells_a_disturbed_host_from_a_disturbed_gpu():
    rows = [row(device_state={"slow_host_probes": 1}), row("bob/rope", device_state={"others": 1})]
    (track,) = rank(rows)
    gpu, host = ranking(track, ABOUT, timed=True).footnotes[-2:]
    assert "GPU: shared with 1 other process (1 of the table's 2 timed rows)" in gpu
    assert host.endswith("disturbed host: slow probes (1 of the table's 2 timed rows)")


def test_the_leaderboard_says_where_with_what_and_who_is_absent():
    later = replace(RUN, run="r2", versions={"torch": "3", "fla": "1"})
    alone = replace(RUN, run="r3", versions={"quack": "7"})
    rows = [row("alice/rope"), row("bob/rope", run="r2")]
    results = dataclasses.replace(TIMED, runs=[RUN, later, alone], rows=rows)
    assert results.versions == {"torch": "3", "fla": "1"}, "of every run that is shown"
    board = markdown.leaderboard([results], ABOUT)
    assert all(each in board for each in ("## A GPU", "torch 3, fla 1.", "fla: not installed"))
    measured = [*ROWS, row("fla/rope", run="r0", peer=True)]
    board = markdown.leaderboard([dataclasses.replace(TIMED, rows=measured)], ABOUT)
    assert "not installed" not in board, "an earlier run measured it"


def test_a_peak_is_stated_with_its_source_where_it_is_known():
    peak = {"bytes_per_second": 2e12, "flops_per_second": {"float32": 6e13}, "source": "a sheet"}
    known = dataclasses.replace(TIMED, runs=[replace(RUN, peak=peak)])
    stated = "Peak by datasheet: 2 TB/s; TFLOP/s: 60 in float32 (a sheet)."
    assert stated in markdown.leaderboard([known], ABOUT)
    assert "Peak" not in markdown.leaderboard([TIMED], ABOUT)


def test_rows_of_the_plots_are_not_on_the_board():
    rows = [*ROWS, row("alice/rope", case="c9", tier="plot"), row(us=1.0, tier="plot")]
    more = dataclasses.replace(TIMED, rows=rows)
    assert markdown.leaderboard([more], ABOUT) == markdown.leaderboard([TIMED], ABOUT)


def test_untimed_rows_show_no_times():
    untimed = drawn(timed=False)
    assert untimed.header == ("", "solution", "covers", "error / eager's", "note")
    assert all(len(cells) == 5 and not cells[0] for cells in untimed.rows)


def test_times_are_medians_beside_the_limits():
    (forward,) = table.times(rank(ROWS[:3])[0])
    assert forward.header == ("solution", "c1")
    assert dict(forward.rows) == {
        "alice/rope": "10.0",
        "(eager/rope)": "20.0",
        "bob/rope": "TIMEOUT",
        "copy of the same bytes": "5.0",
    }
    rows = [row(f"{name}/rope", dense=us) for name, us in (("a", 7.0), ("b", 8.0), ("c", 6.0))]
    (forward,) = table.times(rank([*rows, row("a/rope", case="c2")])[0])
    assert forward.rows[-1] == ("dense products of the same shapes", "7.0", "")


def test_markdown_tables_keep_their_columns_whatever_the_text():
    board = markdown.leaderboard([TIMED], ABOUT)
    tables = [part.splitlines() for part in board.split("\n\n") if part.startswith("|")]
    assert r"tiles \| pipes" in board
    assert r"a \| b" in board
    tables += [
        part.splitlines() for part in markdown.board([TIMED], ABOUT).split("\n\n") if part[0] == "|"
    ]
    assert [len(set(map(columns, lines))) for lines in tables] == [1, 1]


def test_who_is_no_longer_in_the_tree_is_left_out():
    for board, first in (
        (markdown.leaderboard([TIMED], ABOUT), "| 1 | alice/rope |"),
        (markdown.board([TIMED], ABOUT), "| rope | core | alice/rope 2.00 |"),
    ):
        assert "gone" not in board
        assert first in board


def test_the_terminal_shows_markup_as_text_and_that_nothing_was_timed():
    untimed = replace(RUN, device="cpu")
    rows = [failed("alice/rope", reason="[red]")]
    results = Results(path=None, runs=[untimed], rows=rows)
    text = printed(160, terminal.show, results, ABOUT)
    assert "[red]" in text and "Nothing was timed" in text


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "words"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"),
     ((1 << 30) - 1, "1024.0 MiB"), (3 << 29, "1.5 GiB"), (3 << 40, "3072.0 GiB")],
)  # fmt: skip
def test_bytes_are_said_in_the_largest_unit_that_they_fill(amount, words):
    assert table.size(amount) == words


REMEMBERED = [
    row(peak_memory=1 << 20),
    row(direction="backward", peak_memory=5 << 20),
    row("eager/rope", us=20.0, peer=True, peak_memory=3 << 30),
    row("eager/rope", us=20.0, peer=True, direction="backward"),
    row("bob/rope"),
]


def test_peak_memory_is_that_of_the_case_with_the_most():
    (track,) = rank(REMEMBERED)
    drawn = ranking(track, ABOUT, timed=True)
    column = drawn.header.index("peak memory")
    assert {owner.solution: cells[column]
            for owner, cells in zip(drawn.owners, drawn.rows, strict=True)} == {
        "alice/rope": "5.0 MiB", "eager/rope": "3.0 GiB", "bob/rope": "–",
    }  # fmt: skip


def test_every_cases_memory_is_a_table_for_each_direction():
    (track,) = rank(REMEMBERED)
    forward, backward = table.memory(track)
    assert forward.title == "rope: core, forward, peak memory"
    assert dict(forward.rows)["alice/rope"] == "1.0 MiB"
    assert dict(forward.rows)["(eager/rope)"] == "3.0 GiB"
    assert dict(backward.rows)["alice/rope"] == "5.0 MiB"
    assert dict(backward.rows)["(eager/rope)"] == "–"
    plain = markdown.leaderboard([TIMED], ABOUT)  # a record without memory
    assert "peak memory" not in drawn().header and table.memory(rank(ROWS)[0]) == []
    assert "GPU memory" not in plain


def test_the_memory_of_the_latest_run_is_stated():
    known = {"r1": {"budget": 16 << 30, "harness": 1 << 29, "device": 15 << 30}}
    runs = [RUN, replace(RUN, run="r2")]
    line = ("GPU memory of the latest run: a budget of 16.0 GiB, in the harness's own process at"
            " most 512.0 MiB, in all processes together, between two steps, at most"
            " 15.0 GiB.")  # fmt: skip
    board = markdown.leaderboard([dataclasses.replace(TIMED, runs=runs, memory=known)], ABOUT)
    assert line in board
    known["r2"] = {"harness": 1 << 30}
    board = markdown.leaderboard([dataclasses.replace(TIMED, runs=runs, memory=known)], ABOUT)
    assert "latest run: in the harness's own process at most 1.0 GiB." in board


# --- the README -----------------------------------------------------------------------------------


BEGIN, END = "<!-- board -->", "<!-- /board -->"


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    return path


def test_the_readme_shows_the_first_three_of_an_op():
    names = [f"{name}/rope" for name in "abcd"]
    rows = [row(name, us=10.0 + at) for at, name in enumerate(names)]
    about = {name: About("", "s1") for name in names}
    board = markdown.board([dataclasses.replace(TIMED, rows=rows)], about)
    assert [name in board for name in names] == [True, True, True, False]


NOTED = ABOUT | {"alice/rope": About(f"mine {END} <b>only</b>", "s1")}


def test_the_readmes_board_is_replaced_between_its_markers_whatever_a_note_says(page):
    for board in ("new \\1 \\g<0>", markdown.board([TIMED], NOTED)):
        assert "<b>" not in board
        for text in ("another", board, board):
            markdown.insert(page, text)
        assert page.read_text() == f"before\n{BEGIN}\n\n{board}\n\n{END}\nafter\n"


def test_a_kill_leaves_the_readme_as_it_was(page, monkeypatch):
    """It is committed, and may hold what its author has not committed yet."""
    before = page.read_bytes()
    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        markdown.insert(page, "board")
    assert page.read_bytes() == before


@pytest.mark.parametrize(
    "text",
    ["", BEGIN, END, f"{END}\n{BEGIN}"],
    ids=["neither", "no end", "no beginning", "turned round"],
)
def test_a_readme_without_its_markers_is_a_fault(page, text):
    page.write_text(text)
    with pytest.raises(UserError, match=r"README\.md"):
        markdown.insert(page, "board")
    assert page.read_text() == text


def test_a_footnote_counts_the_rows_of_each_solution_with_a_kind_of_note():
    torch, caught = "no kernel", "caught: out of resources"
    rows = [
        row("alice/rope", notes=(torch, caught)),
        row("alice/rope", case="c2", notes=(torch,)),
        row("bob/rope", notes=(torch,)),
        row("bob/rope", case="c2"),
    ]
    (track,) = rank(rows)
    assert ranking(track, ABOUT, timed=True).footnotes[-2:] == (
        "no kernel: alice/rope (2 of 2 rows), bob/rope (1 of 2 rows)",
        "caught: alice/rope (1 of 2 rows)",
    )
