"""The README's table and its picture, from records alone."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest
from markdown_it import MarkdownIt

from common.board import markdown, table, terminal
from common.board.columns import summary
from common.board.plots import overview
from common.board.table import NOTE_WIDTH, About, cut
from common.interfaces import names
from common.records.runs import Results
from tests.support.boards import ABOUT, RUN, TIMED, failed, printed, row
from tests.support.markdown import columns

LONG = "Every word of this note is needed to reach past the sixty characters that fit"
BOTH = [
    row("alice/rope", us=10.0),
    row("alice/rope", us=40.0, case="c2", track="extended"),
    row("bob/rope", us=5.0),
    failed("bob/rope", case="c2", track="extended", verdict="UNSUPPORTED", reason="no thd"),
    failed("carol/rope", reason="no answer"),
    row("carol/rope", us=10.0, case="c2", track="extended"),
    failed("dave/rope", reason="no answer within 60 s"),
    failed("dave/rope", case="c2", track="extended", reason="no answer within 60 s"),
    row("eager/rope", us=20.0, peer=True),
    row("eager/rope", us=20.0, case="c2", track="extended", peer=True),
]


def ranked(rows):
    ((_, tracks),) = table.tracks_by_op(rows)
    return tracks


def everyone(rows):
    return {row.solution: About("mine", "s1") for row in rows}


# --- one table an op ------------------------------------------------------------------------------


def test_the_table_has_the_fastest_three_of_each_op_in_its_main_track():
    main, _ = ranked(BOTH)
    (other,) = ranked([row("alice/rotate_half", op="rotate_half")])
    about = ABOUT | {"carol/rope": About("carol's", "s1"), "dave/rope": About("dave's", "s1")}
    drawn = summary([main, other], about | {"alice/rotate_half": About("", "s1")})
    assert drawn.header == ("op", "track", "first", "second", "third")
    marks = table.STALE + table.DISTURBED + table.EDITED
    assert [tuple(cell.strip(marks) for cell in cells) for cells in drawn.rows] == [
        ("rope", "core", "bob/rope† 4.00", "alice/rope 2.00", "(eager/rope) 1.00"),
        ("rotate_half", "core", "alice/rotate_half 2.00", "", ""),
    ]


def test_the_table_marks_what_a_long_one_marks():
    rows = [row(device_state={"throttled": ["hardware slowdown"]}), row("bob/rope")]
    drawn = summary(ranked(rows), ABOUT)
    ((_, _, *cells, _),) = drawn.rows
    assert {cell.split()[0] for cell in cells} == {
        f"alice/rope{table.DISTURBED}", f"bob/rope{table.STALE}"
    }  # fmt: skip
    assert [note[0] for note in drawn.footnotes] == [table.STALE, table.DISTURBED]


def test_who_is_not_ranked_has_a_dash():
    ((_, _, first, *_),) = summary(ranked([failed("bob/rope")]), ABOUT).rows
    assert first == f"bob/rope{table.STALE} –"


HOSTILE = (
    "<script>x</script> ![p](http://x/p.png) [a](http://x) **b** `c` _d_ ~~e~~ | \\ <img src=x>"
    " &lt; \x1b[31m \u202e"
)


@pytest.mark.parametrize("note", ["plain", "a | b <script>\n\n# c", HOSTILE])
def test_the_readme_has_one_table_whatever_a_note_says(note):
    rows = [*BOTH, row("alice/rotate_half", op="rotate_half")]
    about = everyone(rows) | {"alice/rope": About(note, "s1")}
    board = markdown.board([Results(path=None, runs=[RUN], rows=rows)], about)
    lines = board.splitlines()
    assert [line for line in lines if line.startswith(("#", "**"))] == ["### A GPU"]
    assert "| --- | --- | --- | --- | --- |" in lines
    assert [columns(line) for line in lines if line.startswith("|")] == [6] * 4
    assert "<script>" not in board


@pytest.mark.parametrize("name", ["transformer_engine/rope_unfused", "(eager/rope)", "a-b.c×2"])
def test_a_plain_name_is_written_as_it_is(name):
    assert markdown.escaped(name) == name


@pytest.mark.parametrize("text", [HOSTILE, "_a_", "a*b*c", "1 | 2", "`", "[x]", "a_b_c _d"])
def test_escaped_text_has_no_meaning_in_markdown(text):
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    (paragraph, inline, _) = parser.parse(markdown.escaped(text))
    assert paragraph.type == "paragraph_open"
    assert {child.type for child in inline.children} <= {"text", "text_special"}
    said = "".join(child.content for child in inline.children)
    assert said.split() == text.replace("\x1b", " ").replace("\u202e", " ").split()


# --- the order of ops, and how wide a note is -----------------------------------------------------


def test_every_board_has_rope_first_and_unknown_ops_last():
    ops = ["another", "masked_ffn", "masked_linear", "rope", "rotate_half"]
    expected = ["rope", "rotate_half", "masked_linear", "masked_ffn", "another"]
    rows = [row(f"alice/{op}", op=op) for op in ops]
    results = Results(path=None, runs=[RUN], rows=rows)
    about = everyone(rows)
    terminals = printed(160, terminal.show, results, about)
    for board in (markdown.leaderboard([results], about), terminals,
                  markdown.board([results], about)):  # fmt: skip
        places = [board.index(f"alice/{op} ") for op in expected]
        assert places == sorted(places)


def test_the_order_names_ops_that_exist():
    assert set(table.OPS) <= set(names())


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        *((each, each) for each in ("", "short", "x" * NOTE_WIDTH, "a" * 58 + " b")),
        (LONG, "Every word of this note is needed to reach past the sixty…"),
        ("x" * 90, "x" * 59 + "…"),
        ("word, " * 20, "word, " * 8 + "word, word…"),
        ("a" * 59 + " b", "a" * 59 + "…"),
        ("a" * 60 + " b", "a" * 59 + "…"),
    ],
)
def test_a_long_note_is_cut_between_words_and_ends_with_an_ellipsis(note, expected):
    assert cut(note) == expected
    assert len(expected) <= NOTE_WIDTH


def test_the_leaderboard_keeps_notes_whole_and_the_terminal_does_not():
    about = everyone(TIMED.rows) | {"alice/rope": About(LONG, "s1")}
    assert LONG in markdown.leaderboard([TIMED], about)
    board = printed(199, terminal.show, TIMED, about)
    assert LONG not in board and cut(LONG) in board


# --- the picture ----------------------------------------------------------------------------------


def words(path):
    """An SVG's texts."""
    return ["".join(each.itertext()) for each in ElementTree.parse(path).iter()
            if each.tag.endswith("}text")]  # fmt: skip


def test_the_picture_has_the_best_of_each_folder_in_the_main_track(tmp_path):
    rows = [*BOTH, row("alice/rope_slow", us=80.0), row("gone/rope", us=1.0)]
    about = {name: about for name, about in everyone(rows).items() if name != "gone/rope"}
    path = overview.draw(dataclasses.replace(TIMED, rows=rows), about, tmp_path / "new")
    assert path == tmp_path / "new" / "overview.svg"
    title, device, *_, heading, bob, fast, alice, half, eager, one = words(path)
    assert (title, device) == ("How many times as fast as plain torch", "A GPU")
    assert heading == "ropecore"
    assert [bob, fast, alice, half, eager, one] == [
        "bob", "4.00 ×", "alice", "2.00 ×", "(eager)", "1.00 ×",
    ]  # fmt: skip


def test_no_picture_where_no_solution_is_ranked(tmp_path):
    nothing = dataclasses.replace(TIMED, rows=[failed("bob/rope")])
    assert overview.draw(nothing, ABOUT, tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_the_picture_is_always_the_same_and_legible_on_any_page(tmp_path):
    rows = [row("<b>&/rope")]
    drawn = dataclasses.replace(TIMED, rows=rows)
    one, other = (overview.draw(drawn, everyone(rows), tmp_path / name) for name in "ab")
    assert "<b>&" in words(one)
    text = one.read_text()
    assert text == other.read_text() and "matplotlib" not in text
    assert "prefers-color-scheme: dark" in text
    assert 'class="page"' in text, "its own background"


def test_panels_share_two_columns_and_bars_stay_inside(tmp_path):
    rows = [row(f"{handle}{n}/{op}", op=op, us=float(n + 1))
            for op in table.OPS for handle in ("alice", "b" * 39) for n in range(9)]  # fmt: skip
    path = overview.draw(dataclasses.replace(TIMED, rows=rows), everyone(rows), tmp_path)
    svg = ElementTree.parse(path).getroot()
    width, height = (float(svg.get(name)) for name in ("width", "height"))
    bars = [each for each in svg.iter() if each.get("class") == "mine" and each.get("rx")]
    assert len(bars) == 1 + len(table.OPS) * overview.BARS  # one in the legend
    for bar in bars:
        assert float(bar.get("x")) + float(bar.get("width")) < width
        assert float(bar.get("y")) + float(bar.get("height")) < height
