"""Tables in a terminal: as many columns as it is wide, and no number or name cut."""

import io

import pytest
from rich.console import Console

from common.board import table, terminal
from common.board.drawing import draw, fitted
from common.board.ranking import rank
from common.board.table import About, Table
from tests.test_ranking import row

LONG = "transformer_engine/rope_unfused"
ROWS = [row("house/rope", peak_memory=3 << 30), row(LONG, us=20.0, peer=True, peak_memory=1 << 29)]
ABOUT = {"house/rope": About("One program a token.", "s1"), LONG: About("", "s1")}
NEEDED = ("2.00 ± 0.00", f"({LONG})", "50% of copy", "1/1")


def board():
    (track,) = rank(ROWS)
    return table.ranking(track, ABOUT, timed=True, whole=False)


def printed(width, drawn=None):
    output = io.StringIO()
    terminal._print(Console(file=output, width=width), drawn or board(), "")
    return output.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_neither_names_nor_numbers_are_cut(width):
    text = printed(width)
    assert all(words in text for words in NEEDED)
    assert max(map(len, text.splitlines())) <= width
    assert [line.split()[0] for line in text.splitlines() if "± " in line] == ["1", "2"]


def test_a_name_gives_way_to_the_numbers_where_nothing_else_can():
    text = printed(40)
    assert "2.00 ± 0.00" in text and "1.00 ± 0.00" in text
    assert "(transformer_" in text and "…" in text


def test_a_narrow_terminal_says_what_it_leaves_out():
    assert "too narrow for: peak memory, error / eager's, note" in printed(79)
    assert "too narrow for: error / eager's" in printed(106)
    wide = printed(160)
    assert "too narrow" not in wide
    assert all(words in wide for words in ("3.0 GiB", "512.0 MiB", "One program a token."))


def test_the_columns_that_are_needed_most_stay():
    headers = [fitted(board(), width).header for width in (50, 65, 79, 88)]
    assert [header[3:] for header in headers] == [
        (),
        ("covers",),
        ("worst share of limit", "covers"),
        ("worst share of limit", "peak memory", "covers"),
    ]


def test_a_long_heading_has_lines_and_a_table_without_rows_can_be_drawn():
    devices = Table("rope", ("solution", "NVIDIA GeForce RTX 4060"), (("a/rope", "2.00"),))
    lines = printed(80, devices).splitlines()
    assert any(line.strip() == "NVIDIA" for line in lines)
    assert max(map(len, lines)) < 30, "no wider than it needs"
    assert draw(Table("rope", ("solution", "earlier", "of its cases"), ())).row_count == 0
