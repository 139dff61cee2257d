"""LEADERBOARD.md and the README's board, table and picture, from records alone."""

import dataclasses
import json
import xml.etree.ElementTree as ElementTree

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from common.board import markdown, overview, table
from common.board.columns import ranking, rows, summary
from common.board.ranking import TRACKS, About, rank
from common.errors import NOTES, Note, UserError
from common.paths import ROOT
from common.peaks import PEAKS, Peak
from common.records.runs import Results
from tests.support.boards import ABOUT, ROWS, RUN, TIMED, columns, devices, everyone, failed, row
from tests.support.boards import summary as summary_of


def leaderboard(results=TIMED, about=ABOUT):
    return markdown.leaderboard(devices(results, about=about))


def board(results=TIMED, about=ABOUT):
    """The README's board."""
    return markdown.board(devices(results, about=about))


def changed(**fields):
    return dataclasses.replace(TIMED, **fields)


def drawn(*rows, timed=True):
    """The ranking of the one track there is."""
    (track,) = rank(rows, ABOUT, timed)
    return ranking(track)


# --- a ranking ------------------------------------------------------------------------------------


def test_a_row_says_place_speed_share_coverage_error_note_and_that_its_source_changed():
    known = drawn(*ROWS[:3])
    alice, eager, bob = known.rows
    assert known.header[:2] == ("solution", "GPU, forward")
    assert alice == ("alice/rope", "1. 50.0%, 2.00×", "1/1", "0.50", "tiles | pipes")
    assert eager[:2] == ("(eager/rope)", "2. 25.0%, 1.00×")
    assert bob == (f"bob/rope{table.STALE}", "–", "0/1", "", "TIMEOUT: a | b (c1 forward)")
    assert any(table.STALE in footnote for footnote in known.footnotes)
    untimed = drawn(*ROWS[:3], timed=False)
    assert untimed.header == ("solution", "covers", "error / eager's", "note")


@pytest.mark.parametrize(
    ("state", "note"),
    [({"slow_probes": 2}, "disturbed GPU: slow probes (1 of the table's 2 timed rows)"),
     ({"slow_host_probes": 1}, "disturbed host: slow probes (1 of the table's 2 timed rows)")],
)  # fmt: skip
def test_a_row_of_a_disturbed_device_or_host_says_so(state, note):
    known = drawn(row(device_state=state), row("bob/rope", us=20.0))
    marked = [f"alice/rope{table.DISTURBED}", f"bob/rope{table.STALE}"]
    assert [cells[0] for cells in known.rows] == marked
    assert known.footnotes[-1] == f"{table.DISTURBED} measured in part on a {note}"


def test_a_footnote_counts_the_rows_of_each_solution_with_a_kind_of_note():
    torch, caught = Note("NO_KERNEL"), Note("CAUGHT", "no kernel: out of resources")
    known = drawn(
        row("alice/rope", notes=(torch, caught)),
        row("alice/rope", case="c2", notes=(torch,)),
        row("bob/rope", notes=(torch,)),
        row("bob/rope", case="c2"),
    )
    assert known.footnotes[-2:] == (
        f"{torch}: alice/rope (2 of 2 rows), bob/rope (1 of 2 rows)",
        f"{NOTES['CAUGHT']}: alice/rope (1 of 2 rows)",
    )


# --- the leaderboard ------------------------------------------------------------------------------


def pinned(package):
    """Return the version that pyproject.toml has."""
    return (ROOT / "pyproject.toml").read_text().partition(f'"{package}==')[2].partition('"')[0]


def test_the_leaderboard_says_where_with_what_and_who_is_absent(monkeypatch):
    unknown = "Peak: unknown; the copy and the products measured beside each solution"
    assert unknown in leaderboard()
    monkeypatch.setitem(PEAKS, "A GPU", Peak(2e12, {"float32": 6e13}, "a sheet"))
    versions = {"fla": "1", "transformer_engine_cu13": "2", "torch": pinned("torch")}
    first = replace(RUN, run="r1", versions={"torch": "1", "triton": "2"})
    later = replace(RUN, run="r2", versions=versions, machine={"driver": "580.95"})
    alone = replace(RUN, run="r3", versions={"quack": "7"})
    rows = [row(), row("bob/rope", run="r2")]
    text = leaderboard(changed(runs=[first, later], rows=rows))
    for line in (
        "## A GPU", "- fla: not installed",
        f"torch {versions['torch']}, triton 2 (here {pinned('triton')}), fla 1, "
        f"transformer_engine_cu13 2 (here {pinned('transformer-engine[pytorch]')}), driver 580.95.",
        "Peak by datasheet: 2 TB/s; TFLOP/s: 60 in float32 (a sheet).",
    ):  # fmt: skip
        assert line in text.splitlines()
    rows += [row("fla/rope", run="r0", peer=True)]
    text = leaderboard(changed(runs=[first, later, alone], rows=rows))
    assert "quack" not in text
    assert "not installed" not in text, "an earlier run measured it"
    assert unknown not in text


def test_who_is_no_longer_in_the_tree_is_left_out_and_texts_keep_the_columns():
    for text, first in (
        (leaderboard(), "| alice/rope | 1. 50.0%, 2.00× |"),
        (board(), "| rope | GPU, forward | alice/rope 50.0% |"),
    ):
        assert "gone" not in text and first in text
        (lines,) = (part.splitlines() for part in text.split("\n\n") if part.startswith("|"))
        assert len(set(map(columns, lines))) == 1
    assert r"tiles \| pipes" in leaderboard() and r"a \| b" in leaderboard()


def test_a_table_names_the_runs_of_its_rows(tmp_path):
    """The day is in a file's name; a run of another table is not named."""
    for name in ("20261128T044703.9Z-r2", "20261121T060845Z-r1", "20261120T060845Z-r0"):
        (tmp_path / f"{name}.jsonl").touch()
    rows = [row(), row("bob/rope", run="r2"), row(run="r0", track="packed", case="c9")]
    text = leaderboard(changed(path=tmp_path, rows=rows))
    packed, core = text.split("### rope: ")[1:]
    assert "Rows of the runs 20261121 r1, 20261128 r2." in core.splitlines()
    assert "Rows of the runs 20261120 r0." in packed.splitlines()


def test_a_loop_has_an_interval_of_two_runs_and_none_of_one():
    loop = row(sustained={"solution": 8.0, "eager": 16.0})
    again = row(sustained={"solution": 9.0, "eager": 16.0}, run="r0")
    for earlier, expected in ([], (None, None)), ([again], pytest.approx((16 / 9, 2.0))):
        runs = changed(runs=[replace(RUN, run="r0"), RUN], rows=[*earlier, loop])
        own = next(rows(devices(runs)))["columns"]["in a loop, forward"]
        assert (own["low"], own["high"]) == expected


def test_a_row_for_scripts_has_what_the_board_has():
    listed = list(rows(devices(TIMED)))
    alice, eager, bob = listed
    assert [each["solution"] for each in listed] == ["alice/rope", "eager/rope", "bob/rope"]
    assert (alice["device"], alice["op"], alice["track"]) == ("A GPU", "rope", "core")
    assert alice["columns"] == {"GPU, forward": pytest.approx({
        "place": 1, "share": 0.5, "times_eager": 2.0, "low": None, "high": None, "runs": 1
    })}  # fmt: skip
    assert (alice["covered"], alice["cells"], alice["error"]) == (1, 1, 0.5)
    assert alice["note"] == "tiles | pipes" and not alice["stale"] and eager["peer"]
    assert bob["columns"] == {}
    assert bob["lacks"].startswith("TIMEOUT") and bob["stale"]
    selected = (list(rows(devices(TIMED), only)) for only in ("alice,bob/rope.py", "alice/ro"))
    assert list(selected) == [[alice, bob], []]
    assert json.loads(json.dumps(listed)) == listed


# --- the README -----------------------------------------------------------------------------------


BOTH = [
    row("alice/rope", us=10.0, device_state={"slow_probes": 1}),
    row("alice/rope", us=40.0, case="c2", track="extended"),
    row("bob/rope", us=5.0),
    failed("bob/rope", case="c2", track="extended", verdict="UNSUPPORTED", reason="no thd"),
    failed("carol/rope", reason="no answer"),
    failed("dave/rope", reason="no answer within 60 s"),
    row("eager/rope", us=20.0, peer=True),
    row("alice/rotate_half", op="rotate_half"),
    failed("bob/masked_ffn", op="masked_ffn"),
]


def test_the_table_has_the_first_three_of_each_column_of_the_main_tracks():
    about = everyone(BOTH) | {"bob/rope": About("", "s2")}
    (device,) = devices(changed(rows=BOTH), about=about)
    known = summary(device.mains)
    assert known.header == ("op", "column", "first", "second", "third")
    first = ("bob/rope† 100.0%", "alice/rope‡ 50.0%", "(eager/rope) 25.0%")
    assert known.rows == (
        ("rope", "GPU, forward", *first),
        ("rotate_half", "GPU, forward", "alice/rotate_half 50.0%", "", ""),
    )
    assert [note[0] for note in known.footnotes] == [table.STALE, table.DISTURBED]
    (level,) = devices(changed(rows=[row(), row("bob/rope")]), about=everyone(BOTH))
    assert summary(level.mains).rows[0][2:] == ("1= alice/rope 50.0%", "1= bob/rope 50.0%", "")


HOSTILE = (
    "<script>x</script> ![p](http://x/p.png) [a](http://x) **b** `c` _d_ ~~e~~ | \\ <img src=x>"
    " &lt; \x1b[31m \u202e"
)


@pytest.mark.parametrize("text", [HOSTILE, "a_b_c _d"])
def test_escaped_text_has_no_meaning_in_markdown_and_a_name_is_written_as_it_is(text):
    for name in ("transformer_engine/rope_unfused", "(eager/rope)", "a-b.c×2"):
        assert markdown.escaped(name) == name
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    (paragraph, inline, _) = parser.parse(markdown.escaped(text))
    assert paragraph.type == "paragraph_open"
    assert {child.type for child in inline.children} <= {"text", "text_special"}
    said = "".join(child.content for child in inline.children)
    assert said.split() == text.replace("\x1b", " ").replace("\u202e", " ").split()


BEGIN, END = "<!-- board -->", "<!-- /board -->"


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    return path


def test_the_readmes_board_is_replaced_between_its_markers_whatever_a_note_says(page):
    for text in ("new \\1 \\g<0>", board(TIMED, everyone(ROWS, alice=f"mine {END} {HOSTILE}"))):
        assert "<script>" not in text
        for each in ("another", text, text):
            markdown.insert(page, each)
        assert page.read_text() == f"before\n{BEGIN}\n\n{text}\n\n{END}\nafter\n"


@pytest.mark.parametrize("text", [BEGIN, f"{END}\n{BEGIN}"])
def test_a_readme_without_its_markers_is_a_fault(page, text):
    page.write_text(text)
    with pytest.raises(UserError, match=r"README\.md"):
        markdown.insert(page, "board")
    assert page.read_text() == text


# --- the picture ----------------------------------------------------------------------------------


def picture(rows):
    """The root of the SVG that is drawn of these rows."""
    known = {name: about for name, about in everyone(rows).items() if name != "gone/rope"}
    (device,) = devices(changed(rows=rows), about=known)
    return ElementTree.fromstring(overview.picture(device))


def words(svg):
    return ["".join(each.itertext()) for each in svg.iter() if each.tag.endswith("}text")]


def test_the_picture_has_the_best_of_each_folder_in_the_main_track():
    rows = [*BOTH[:7], row("alice/rope_slow", us=80.0), row("gone/rope", us=1.0)]
    title, device, *_, heading, bob, fast, alice, half, eager, one = words(picture(rows))
    assert (title, device, heading) == (
        "What the fastest solutions reach", device, "ropecore: GPU, forward"
    )  # fmt: skip
    assert device.startswith("A GPU: the share of the limit")
    assert [bob, fast, alice, half, eager, one] == [
        "bob", "100.0%", "alice", "50.0%", "(eager)", "25.0%",
    ]  # fmt: skip
    (nobody,) = devices(Results(None, [RUN], [failed("bob/rope")]), about=ABOUT)
    assert overview.picture(nobody) == ""


def test_a_heat_map_has_the_share_of_each_solution_and_case_by_the_gpu():
    rows = [row(), row(case="c2", copy=9.0), failed("bob/rope"), row("bob/rope", case="c2")]
    rows += [row(name, case="small", ranked_by="host") for name in ("alice/rope", "bob/rope")]
    (device,) = devices(changed(rows=rows), about=everyone(rows))
    (track,) = device.mains
    svg = ElementTree.fromstring(overview.heat_map(track, device))
    title, _, quantity, one, two, *cells = words(svg)
    assert (title, quantity, one, two) == ("rope: core on A GPU", "GPU, forward", "1", "2")
    assert cells == ["alice/rope", "50", "90", "bob/rope", "–", "50", "1", "c1", "2", "c2"]
    drawn = leaderboard(changed(rows=rows), everyone(rows))
    assert "](docs/plots/a-gpu/rope-core-shares.svg)" in drawn
    (host,) = devices(changed(rows=rows[-2:]), about=everyone(rows))
    assert overview.heat_map(host.mains[0], host) == "", "no limit by the host"


def test_pictures_mark_who_was_measured_before_its_source_changed():
    long, new = f"{'b' * 39}/rope", About(digest="changed")
    rows = [row(), row("bob/rope"), row(long)]
    about = everyone(rows) | {"bob/rope": new, long: new}
    (device,) = devices(changed(rows=rows), about=about)
    for text in (overview.picture(device), overview.heat_map(device.mains[0], device)):
        names = [each for each in words(ElementTree.fromstring(text)) if each[0] in "ab"]
        cut = next(each for each in names if each.endswith("…†"))
        known = {"alice", "bob†", cut}, {"alice/rope", "bob/rope†", cut}
        assert {*names} in known and table.OUTDATED in text


def test_the_picture_is_legible_on_any_page_and_bars_stay_inside():
    assert "<b>&" in words(picture([row("<b>&/rope")]))
    assert "(flash_linear_attention)" in words(picture([row("flash_linear_attention/r", peer=1)]))
    host = {"solution": summary_of([9.0, 10.0, 11.0]), "eager": summary_of(40.0)}
    bar = next(each for each in picture([row(ranked_by="host", host=host)]).iter()
               if each.get("class") == "mine" and each.get("x") != "644")  # fmt: skip
    assert float(bar.get("width")) < 160, "there is room for the interval"
    rows = [row(f"{handle}{n}/{op}", op=op, us=float(n + 1))
            for op in TRACKS for handle in ("alice", "b" * 39) for n in range(9)]  # fmt: skip
    svg = picture(rows)
    text = ElementTree.tostring(svg, "unicode")
    assert "prefers-color-scheme: dark" in text
    assert 'class="page"' in text, "its own background"
    width, height = (float(svg.get(name)) for name in ("width", "height"))
    bars = [each for each in svg.iter() if each.get("class") == "mine" and each.get("rx")]
    assert len(bars) == 1 + len(TRACKS) * overview.BARS  # one in the legend
    for bar in bars:
        assert float(bar.get("x")) + float(bar.get("width")) < width
        assert float(bar.get("y")) + float(bar.get("height")) < height
