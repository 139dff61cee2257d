"""Tables in a terminal: as many columns as it is wide, and no number or name cut."""

import pytest
from msgspec.structs import replace

from common.board import terminal
from common.board.columns import PLACES, ranking
from common.board.ranking import DIRECTION, About, rank
from common.errors import Note
from common.records.runs import Results
from tests.support.boards import RUN, devices, everyone, failed, printed, row

LONG = "transformer_engine/rope_unfused"
ROWS = [row("house/rope", us=[9.999, 10.0, 10.001]), row(LONG, us=[19.99, 20.0, 20.01], peer=True)]


def shown(width, note="One program a token.", rows=ROWS):
    """The track as the command shows it."""
    (track,) = rank(rows, {"house/rope": About(note, "s1")})
    return printed(width, terminal.show_tables, [ranking(track, short=True)])


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (50, "covers; error / eager's; note"),
        (65, "error / eager's; note"),
        (77, "error / eager's"),
        (160, ""),
    ],
)
def test_neither_names_nor_numbers_are_cut_and_the_columns_needed_most_stay(width, left_out):
    text = shown(width)
    assert all(words in text for words in ("1. 50.0% ± 0.0", f"({LONG})"))
    assert max(map(len, text.splitlines())) <= width
    assert [line.split()[1] for line in text.splitlines() if "± " in line] == ["1.", "2."]
    assert (f"too narrow for: {left_out}" in " ".join(text.split())) == bool(left_out)
    if not left_out:
        assert "One program a token." in text


@pytest.mark.parametrize("width", [80, 160, 200])
def test_a_note_and_a_reason_command_no_terminal(width):
    bad = "\x1b[31mred [red] \x1b]0;title\x07 \u202e back \x9b2J"
    text = shown(width, bad, [ROWS[0], failed(LONG, reason=bad)])
    assert not set(text) & set("\x1b\x07\x9b\u202e")
    assert width == 80 or "[31mred [red]" in text


@pytest.mark.parametrize("further", [[], [row("a/rope", us=40.0)]])
def test_a_summary_has_no_place_without_those_before_it_and_cuts_no_name(further):
    """A third place may be empty, or narrower than the second; a footnote counts a row once."""
    noted = [replace(ROWS[0], notes=(Note("NO_KERNEL"),)), *ROWS[1:], *further]
    rows, counts = [replace(each, direction=way) for way in DIRECTION for each in noted], set()
    (device,) = devices(Results(None, [RUN], rows), about=everyone(rows))
    for width in range(40, 120):
        text = printed(width, terminal.show_summary, device)
        _, _, _, heading, _, *lines = text.splitlines()
        _, _, *places = heading.split()
        assert places == [*PLACES[: len(places)]]
        counts.add(len(places))
        text = "".join(lines)
        assert "house/rope 50.0%" in text and "backward" in text and "…" not in text
        assert (f"({LONG}) 25.0%" in text) == (len(places) > 1)
        assert text.count("rows)") == 1
    assert counts == {1, 2, 3}


def test_a_case_of_ones_own_names_the_fastest_and_who_else_is_near():
    rows = [row("alice/rope"), row("alice/rope", us=30.0, direction="backward")]
    rows += [replace(row("eager/rope", us=25.0, peer=True), direction=each.direction)
             for each in rows]  # fmt: skip
    (device,) = devices(Results(None, [RUN], rows))
    *table, forward, both = printed(160, terminal.show_cases, device).splitlines()
    assert "rope: c1" in "".join(table)
    assert forward.startswith("rope c1 forward: alice/rope is fastest, 10.0 µs, 50.0% of copy; ")
    peer = "; the best of the installed peers, (eager/rope), takes 2.50 times as long"
    assert forward.endswith(peer)
    assert both.endswith("; the best contributor, alice/rope, takes 1.20 times as long")
