"""Boards from records alone, with numbers worked out by hand."""

import dataclasses
import io

import msgspec
import pytest
from rich.console import Console

from common.board import markdown, table, terminal
from common.board.ranking import limit, rank, score, share
from common.board.table import About
from common.errors import UserError
from common.records import runs
from common.records.runs import SCHEMA, Record, Results, Run, Summary
from common.records.writer import RunWriter

RUN = Run(
    schema=SCHEMA, run="r1", device="cuda", device_name="A GPU", versions={"torch": "2"},
    absent={"fla": "not installed"},
)  # fmt: skip
PARAMS = {"dtype": "float32", "s": 16, "b": 1, "h": 1, "d": 8, "d2": 8}
replace = msgspec.structs.replace


def summary(given):
    """Of samples, all of which are the number given, or those of a list."""
    return Summary.of(given if isinstance(given, list) else [given] * 9)


def row(solution="alice/rope", us=10.0, eager=20.0, **fields):
    """A row whose samples are the numbers given, or all those of a list."""
    times = {"solution": us, "eager": eager, "copy": fields.pop("copy", 5.0)}
    if dense := fields.pop("dense", None):
        times["dense"] = dense
    gpu = {name: summary(given) for name, given in times.items()}
    plain = Record(
        schema=SCHEMA, run="r1", solution=solution, op="rope", case="c1", params=PARAMS,
        track="core", ranked_by="gpu", direction="forward", verdict="PASSED", error=0.5, bytes=8,
        flops=9, sources="s1", harness="h1", gpu=gpu,
        host={"solution": summary([1.0]), "eager": summary([1.0])},
    )  # fmt: skip
    return replace(plain, **fields)


def failed(solution, **fields):
    return row(solution, gpu={}, host={}, **{"verdict": "TIMEOUT", "error": None, **fields})


def ranked(*rows):
    """The entries of the one track there is."""
    (track,) = rank(rows)
    return track.entries


def places(*rows):
    return [(entry.solution, entry.rank) for entry in ranked(*rows)]


# --- the score ------------------------------------------------------------------------------------


def test_score_is_the_geometric_mean_of_ratios_of_medians():
    quick = row(us=[1.0, 5.0, 100.0], eager=[40.0, 1.0, 80.0])  # 40 / 5
    assert score([quick, row(us=10.0, eager=20.0)]).value == pytest.approx(4.0)
    assert score([row(us=10.0, eager=20.0)] * 3).value == pytest.approx(2.0)
    assert score([row(us=8.0, eager=2.0), row(us=2.0, eager=8.0)]).value == pytest.approx(1.0)


def test_the_interval_holds_the_score_and_shrinks_with_the_noise():
    noisy = [10.0 + i % 5 for i in range(40)]
    wide = score([row(us=noisy, eager=[3 * us for us in noisy])])
    assert wide.low < wide.value < wide.high
    sure = score([row(us=10.0, eager=20.0)])
    assert sure.low == pytest.approx(sure.value) == pytest.approx(sure.high)


def test_the_same_records_give_the_same_board():
    rows = [row(us=[9.0, 10.0, 12.0]), row("bob/rope", us=[8.0, 11.0, 13.0])]
    assert rank(rows) == rank(iter(rows))


def test_host_time_ranks_where_the_case_says_so():
    host = {"solution": summary(2.0), "eager": summary(6.0)}
    assert score([row(us=1.0, eager=10.0, ranked_by="host", host=host)]).value == pytest.approx(3.0)
    assert score([row(us=1.0, eager=10.0, ranked_by="gpu", host=host)]).value == pytest.approx(10.0)


def test_share_of_the_limit_is_by_gpu_time_and_the_worst_is_kept():
    rows = [row(us=20.0, copy=5.0, ranked_by="host"), row(us=10.0, copy=9.0, direction="backward")]
    assert [share(each) for each in rows] == [0.25, 0.9]
    (entry,) = ranked(*rows)
    assert entry.worst_share == rows[1], "host time has no such limit"


def test_the_slower_limit_binds():
    assert limit(row(us=10.0, copy=5.0, dense=8.0)) == (8.0, "dense")
    assert limit(row(us=10.0, copy=9.0, dense=8.0)) == (9.0, "copy")
    assert share(row(us=10.0, copy=5.0, dense=8.0)) == 0.8


# --- places ---------------------------------------------------------------------------------------


def test_overlapping_intervals_share_a_place_and_the_next_is_skipped():
    rows = [
        row("carol/rope", us=50.0),
        row("bob/rope", us=[10.0, 11.0, 12.0]),
        row("alice/rope", us=[9.0, 10.0, 11.0]),
        row("(dave)/rope", us=60.0),
    ]
    assert places(*rows) == [
        ("alice/rope", 1),
        ("bob/rope", 1),
        ("carol/rope", 3),
        ("(dave)/rope", 4),
    ]


def test_who_reaches_the_second_of_a_group_but_not_its_leader_stands_behind():
    chain = [
        row("alice/rope", us=[10.0, 11.0, 12.0]),
        row("bob/rope", us=[12.0, 13.0, 14.0]),
        row("carol/rope", us=[14.0, 15.0, 16.0]),
    ]
    assert places(*chain) == [("alice/rope", 1), ("bob/rope", 1), ("carol/rope", 3)]


def test_who_lacks_a_cell_is_unranked_below_with_what_it_lacks():
    rows = [
        row("quick/rope", us=1.0),
        row("quick/rope", direction="backward", verdict="UNSUPPORTED", reason="no grad", gpu={}),
        row("slow/rope", us=99.0),
        row("slow/rope", us=99.0, direction="backward"),
        row("new/rope", us=1.0),
    ]
    slow, new, quick = ranked(*rows)
    assert (slow.rank, slow.covered, slow.missing, slow.lacks) == (1, 2, (), "")
    assert (quick.rank, quick.score, quick.covered) == (None, None, 1)
    assert quick.missing == (("c1", "backward"),)
    assert quick.lacks == "UNSUPPORTED: no grad (c1 backward)"
    assert (new.rank, new.covered, new.lacks) == (None, 1, "not measured yet")


def test_a_failure_lowers_coverage_and_is_named_before_what_is_unsupported():
    rows = [
        row("bob/rope", us=9.0, error=0.7),
        row("bob/rope", case="c2", verdict="UNSUPPORTED", gpu={}, error=None),
        failed("bob/rope", case="c3", reason="no answer within 60 s"),
    ]
    (bob,) = ranked(*rows)
    assert (bob.rank, bob.covered, len(bob.missing), bob.error) == (None, 1, 2, 0.7)
    assert bob.lacks == "TIMEOUT: no answer within 60 s (c3 forward, and 1 more)"


def test_the_unranked_stand_by_coverage():
    rows = [row("most/rope", case=case) for case in ("c1", "c2")]
    rows += [row("least/rope"), failed("least/rope", case="c2"), failed("most/rope", case="c3")]
    assert [entry.solution for entry in ranked(*rows)] == ["most/rope", "least/rope"]


def test_without_a_gpu_nobody_is_ranked():
    rows = [row(solution, gpu={}, host={}, twin=True) for solution in ("alice/rope", "bob/rope")]
    for entry in ranked(*rows):
        assert (entry.rank, entry.score, entry.worst_share) == (None, None, None)
        assert (entry.covered, entry.error) == (1, 0.5)


def test_a_track_is_ranked_by_its_own_cases_alone():
    rows = [row("alice/rope"), row("bob/rope"), failed("alice/rope", case="c2", track="extended")]
    rows += [row("bob/rope", case="c2", track="extended"), row("bob/rotate_half", op="rotate_half")]
    tracks = {(t.op, t.name): [(e.solution, e.rank) for e in t.entries] for t in rank(rows)}
    assert tracks == {
        ("rope", "core"): [("alice/rope", 1), ("bob/rope", 1)],
        ("rope", "extended"): [("bob/rope", 1), ("alice/rope", None)],
        ("rotate_half", "core"): [("bob/rotate_half", 1)],
    }


def test_nothing_measured_is_no_board():
    assert rank([]) == []


# --- as text --------------------------------------------------------------------------------------

ABOUT = {
    "alice/rope": About("tiles | pipes", "s1"),
    "bob/rope": About("plain", "s2"),
    "eager/rope": About("torch", "s1"),
}
ROWS = [
    row("alice/rope"),
    failed("bob/rope", reason="a | b"),
    row("eager/rope", us=20.0, peer=True),
    row("gone/rope", us=1.0),
]
TIMED = Results(path=None, runs=[RUN], rows=ROWS)


def drawn(timed=True):
    (track,) = rank(each for each in ROWS if each.solution in ABOUT)
    return table.ranking(track, ABOUT, timed)


def columns(line):
    return line.replace(r"\|", "").count("|")


def test_a_row_says_place_speed_share_coverage_error_and_note():
    alice, eager, bob = drawn().rows
    assert alice == (
        "1",
        "alice/rope",
        "2.00 ± 0.00",
        "50% of copy (c1)",
        "1/1",
        "0.50",
        "tiles | pipes",
    )
    assert eager[:3] == ("2", "(eager/rope)", "1.00 ± 0.00")
    assert bob[0] == bob[2] == bob[3] == "–"
    assert bob[4:] == ("0/1", "", "TIMEOUT: a | b (c1 forward)")


def test_a_row_measured_before_its_source_changed_is_marked():
    names = [cells[1] for cells in drawn().rows]
    assert names == ["alice/rope", "(eager/rope)", f"bob/rope{table.STALE}"]
    assert any(table.STALE in footnote for footnote in drawn().footnotes)


def test_a_row_of_a_throttled_or_shared_device_says_so():
    state = {"throttled": ["power cap", "hardware slowdown"], "others": 2}
    rows = [row(device_state=state), row("bob/rope", us=20.0, device_state={"throttled": []})]
    (track,) = rank(rows)
    drawn = table.ranking(track, ABOUT, timed=True)
    assert [cells[1] for cells in drawn.rows] == [
        f"alice/rope{table.DISTURBED}",
        f"bob/rope{table.STALE}",
    ]
    note = drawn.footnotes[-1]
    assert (
        "hardware slowdown, shared with 2 other processes (1 of the table's 2 timed rows)" in note
    )
    (times,) = table.times(track)
    assert [cells[1] for cells in times.rows[:2]] == [f"10.0{table.DISTURBED}", "20.0"]


def test_the_versions_are_of_every_run_that_is_shown():
    later = replace(RUN, run="r2", versions={"torch": "3", "fla": "1"})
    alone = replace(RUN, run="r3", versions={"quack": "7"})
    rows = [row("alice/rope"), row("bob/rope", run="r2")]
    results = dataclasses.replace(TIMED, runs=[RUN, later, alone], rows=rows)
    assert results.versions == {"torch": "3", "fla": "1"}
    assert "torch 3, fla 1." in markdown.leaderboard([results], ABOUT)


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


def test_times_are_medians_beside_a_copy():
    (forward,) = table.times(rank(ROWS[:3])[0])
    assert forward.header == ("solution", "c1")
    assert dict(forward.rows) == {
        "alice/rope": "10.0",
        "(eager/rope)": "20.0",
        "bob/rope": "TIMEOUT",
        "copy of the same bytes": "5.0",
    }


def test_times_stand_beside_dense_products_where_the_case_has_any():
    rows = [
        row(dense=7.0),
        row("bob/rope", dense=8.0),
        row("carol/rope", dense=6.0),
        row(case="c2"),
    ]
    (forward,) = table.times(rank(rows)[0])
    assert forward.rows[-1] == ("dense products of the same shapes", "7.0", "")


def test_markdown_tables_keep_their_columns_whatever_the_text():
    board = markdown.leaderboard([TIMED], ABOUT)
    tables = [part.splitlines() for part in board.split("\n\n") if part.startswith("|")]
    assert r"tiles \| pipes" in board
    assert r"a \| b" in board
    assert [len(set(map(columns, lines))) for lines in tables] == [1, 1, 1]


def test_markdown_says_where_with_what_and_who_is_absent():
    board = markdown.leaderboard([TIMED], ABOUT)
    assert "## A GPU" in board
    assert "torch 2." in board
    assert "fla: not installed" in board


def test_who_is_no_longer_in_the_tree_is_left_out():
    for board in (markdown.leaderboard([TIMED], ABOUT), markdown.readme_board([TIMED], ABOUT)):
        assert "gone" not in board
        assert "| 1 | alice/rope |" in board


def test_the_terminal_shows_markup_as_text_and_that_nothing_was_timed():
    untimed = replace(RUN, device="cpu")
    rows = [failed("alice/rope", reason="[red]")]
    output = io.StringIO()
    results = Results(path=None, runs=[untimed], rows=rows)
    terminal.show(results, ABOUT, Console(file=output, width=160))
    assert "[red]" in output.getvalue()
    assert "Nothing was timed" in output.getvalue()


def test_a_track_needs_records_alone(tmp_path):
    writer = RunWriter(tmp_path / "a-gpu" / "20261121T082930Z-r1.jsonl")
    writer.begin(RUN)
    for each in ROWS:
        writer.row(each)
    writer.close()
    (results,) = runs.read_all(tmp_path)
    assert rank(results.latest()) == rank(ROWS)
    assert markdown.leaderboard([results], ABOUT) == markdown.leaderboard([TIMED], ABOUT)


# --- the README -----------------------------------------------------------------------------------


@pytest.fixture
def readme(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{markdown.BEGIN}\nold\n{markdown.END}\nafter\n")
    return path


def test_the_readmes_board_is_replaced_between_its_markers(readme):
    for board in ("new \\1 \\g<0>", "newer"):
        markdown.insert(readme, board)
        once = readme.read_text()
        markdown.insert(readme, board)
        assert readme.read_text() == once
        assert once == f"before\n{markdown.BEGIN}\n\n{board}\n\n{markdown.END}\nafter\n"


@pytest.mark.parametrize(
    "text",
    ["", markdown.BEGIN, markdown.END, f"{markdown.END}\n{markdown.BEGIN}"],
    ids=["neither", "no end", "no beginning", "turned round"],
)
def test_a_readme_without_its_markers_is_a_fault(readme, text):
    readme.write_text(text)
    with pytest.raises(UserError, match=r"README\.md"):
        markdown.insert(readme, "board")
    assert readme.read_text() == text


def test_a_note_cannot_end_the_readmes_board(readme):
    about = ABOUT | {"alice/rope": About(f"mine {markdown.END} <b>only</b>", "s1")}
    board = markdown.readme_board([TIMED], about)
    markdown.insert(readme, board)
    once = readme.read_text()
    markdown.insert(readme, board)
    assert readme.read_text() == once
    assert "<b>" not in once
