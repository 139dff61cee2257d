"""The seeds' plots: they draw what was recorded."""

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from msgspec.structs import replace

from common import ops
from common.board import markdown, sweeps
from common.board.devices import Device
from common.board.ranking import About
from common.board.sweeps import looks
from common.board.table import OUTDATED
from common.ops._masked import MaskedCase
from common.ops.rope import RopeCase
from common.records.runs import Results
from common.spec import DIRECTIONS
from tests.support import boards
from tests.support.boards import RUN, summary

SVG = "{http://www.w3.org/2000/svg}"
SEEDS = ("masked_ffn", "masked_linear", "rope", "rotate_half")


def row(case, solution="alice/rope", us=10.0, direction="forward", **fields):
    """A timed row: `us` of the solution; a copy takes 4, dense products 6."""
    gpu = {"solution": us, "eager": 20.0, "copy": 4.0}
    gpu |= {"dense": 6.0} if "masked" in fields.get("op", "rope") else {}
    plain = boards.row(
        solution, case=case.name, params=case.params, direction=direction, bytes=80_000, flops=100,
        tier="plot", gpu={name: summary(each) for name, each in gpu.items()},
    )  # fmt: skip
    return replace(plain, **fields)


def bandwidth(length):
    return RopeCase(s=length, b=1, h=8, d=256, d2=256, angles="model")


def length(value):
    return RopeCase(s=value, b=16, h=10, d=512, d2=256)


def masked(tokens, *widths):
    return MaskedCase(tokens=tokens, widths=widths, dtype="bfloat16")


def failed(case, solution):
    return row(case, solution, gpu={}, host={}, verdict="TIMEOUT")


# --- the cases ------------------------------------------------------------------------------------


def test_every_case_of_the_tier_is_on_a_plot():
    found = {}
    for op in map(ops.load, SEEDS):
        rows = [row(case, op=op.name, direction=d) for case in op.cases("plot") for d in DIRECTIONS
                if case.ranked_by == "gpu"]  # fmt: skip
        for plot in sweeps.plots(rows):
            xs = {x for lines in plot.panels.values() for x in lines["alice/rope"]}
            found[plot.sweep.name] = xs
    masks = {"spans": {4**n for n in range(6)}, "random": {0, 5, 25, 50, 75, 95, 100}}
    assert found == {
        "rope-bandwidth": {2**n for n in range(5, 15)},
        "rope-length": set(range(256, 1153, 128)),
        "masked_linear-tokens": {2048, 4096, 8192, 16384, 32768, 63488},
        "masked_ffn-tokens": {2048, 4096, 8192, 16384, 32768, 63488},
        **{f"masked_linear-{name}": xs for name, xs in masks.items()},
        **{f"masked_ffn-{name}": xs for name, xs in masks.items()},
    }


SPAN = masked(16384, 1024, 1024)


@pytest.mark.parametrize(
    ("case", "op", "names"),
    [
        (bandwidth(32), "rope", ["rope-bandwidth"]),
        *((dataclasses.replace(bandwidth(32), **fields), "rope", [])
          for fields in ({"dtype": "float16"}, {"starts": True}, {"angles": "far"})),
        # one span is on the sweep over tokens, half of the tokens at random are on none alone
        (SPAN, "masked_linear", ["masked_linear-tokens"]),
        (dataclasses.replace(SPAN, mask="random"), "masked_linear", []),
    ],
)  # fmt: skip
def test_a_plot_has_the_cases_that_differ_in_its_x_alone(case, op, names):
    assert [plot.sweep.name for plot in sweeps.plots([row(case, op=op)])] == names


def device(rows, name="A GPU", known=("alice/rope", "bob/masked_ffn")):
    return Device(Results(Path("a-gpu"), [replace(RUN, device_name=name)], rows),
                  dict.fromkeys(known, About()))  # fmt: skip


def test_a_plot_has_known_solutions_by_the_latest_clock():
    rows = [row(bandwidth(s), "bob/rope") for s in (32, 64)]
    rows += [row(bandwidth(32), clock=2), row(bandwidth(64), "gone/rope", clock=2)]
    (plot,) = sweeps.of_device(device(rows, known=("alice/rope", "bob/rope")))
    assert {name: {*line} for name, line in plot.panels["forward"].items()} == {"alice/rope": {32}}
    assert not sweeps.of_device(device([replace(each, tier="board") for each in rows]))


# --- the numbers ----------------------------------------------------------------------------------


def test_a_line_is_the_share_of_the_limit_of_its_own_run_in_each_direction():
    rows = [row(length(256)), row(length(256), direction="backward", us=8.0)]
    rows[1] = replace(rows[1], gpu={**rows[1].gpu, "copy": summary(6.0)})
    rows += [row(masked(2048, 1024, 1024), op="masked_linear", us=8.0)]
    rope, linear = sweeps.plots(rows)
    found = {title: lines["alice/rope"][256].value for title, lines in rope.panels.items()}
    assert found == pytest.approx({"forward": 0.4, "with backward": 0.75})
    assert linear.panels["forward"]["alice/rope"][2048].value == pytest.approx(0.75), "the slower"


def test_who_was_measured_before_its_source_changed_has_a_mark():
    rows = [row(bandwidth(s), f"{who}/rope") for who in ("alice", "bob", "carol") for s in (32, 64)]
    known = {"alice/rope": About(digest="new"), "bob/rope": About(digest=rows[0].sources)}
    svg = sweeps.files(dataclasses.replace(device(rows), about={**known, "carol/rope": About()}))
    texts = {each.text for each in ElementTree.fromstring(*svg.values()).iter(f"{SVG}text")}
    assert {"alice/rope†", "bob/rope", "carol/rope", OUTDATED} <= texts


def test_who_has_no_line_is_named_with_the_verdict():
    rows = [row(bandwidth(32)), failed(bandwidth(32), "bob/rope")]
    rows += [failed(bandwidth(64), "alice/rope")]  # has a line of one point
    (plot,) = sweeps.plots(rows)
    assert plot.missing == {"bob/rope": "TIMEOUT"}
    assert sweeps.plots(rows[1:]) == [], "nobody has"


# --- how it looks ---------------------------------------------------------------------------------


def everybody():
    names = [f"{handle}/rope" for handle in ("alice", "bob", "carol")] + ["bob/rope_v2"]
    rows = [row(bandwidth(n), name) for n in (32, 64) for name in names]
    rows += [row(bandwidth(32), "eager/rope", us=30.0, peer=True)]
    rows += [row(masked(2048, 1024, 2048), "bob/masked_ffn", op="masked_ffn")]
    return rows


def test_each_solution_has_a_colour_of_its_own():
    drawn = looks(sweeps.plots(everybody()))
    assert len({colour for colour, _ in drawn.values()}) == len(drawn) == 6


def test_a_file_says_what_was_measured():
    rows = [*everybody(), failed(bandwidth(32), "dave/rope")]
    files = sweeps.files(device(rows, known=[each.solution for each in rows]))
    svg = {name: ElementTree.fromstring(text) for name, text in files.items()}
    texts = {name: {each.text for each in root.iter(f"{SVG}text")} for name, root in svg.items()}
    assert {
        "rope: share of the limit over sequence length, h 8", "alice/rope", "bob/rope_v2",
        "A GPU · by GPU time, of the limit timed in the same run: the dashed line",
        "(eager/rope)", "40%", "64", "Not drawn: dave/rope: TIMEOUT",
    } <= texts["rope-bandwidth.svg"]  # fmt: skip
    assert {"bob/masked_ffn", "forward"} <= texts["masked_ffn-tokens.svg"]


def test_a_line_goes_through_its_shares():
    """The copy takes 4 us, and alice 10."""
    (text,) = sweeps.files(device(everybody()[:2], known=["alice/rope"])).values()
    svg = ElementTree.fromstring(text)
    points = svg.find(f".//{SVG}polyline").get("points").split()
    limit = re.search(r" (\S+)h", svg.find(f".//{SVG}path[@class='limit']").get("d"))[1]
    ys = {float(point.partition(",")[2]) for point in points}
    base = float(svg.find(f".//{SVG}path[@class='grid']").get("d").split()[1].partition("h")[0])
    assert len(points) == 1 and len(ys) == 1
    assert (base - ys.pop()) / (base - float(limit)) == pytest.approx(0.4, abs=0.01)


def test_the_leaderboard_shows_the_plots_that_are_drawn():
    known = device(everybody())
    line = (
        "![rope: share of the limit over sequence length, h 8](docs/plots/a-gpu/rope-bandwidth.svg)"
    )
    assert line in markdown.leaderboard([known]).splitlines()
