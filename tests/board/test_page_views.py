"""The page in a browser: boards sorted and filtered, a solution, two side by side, links."""

import pytest

from common.board.page import views
from common.board.page.drawing import link
from tests.support import made_up
from tests.support.addresses import CASE, VIEWS, board
from tests.support.browsing import READY, seen, settle, texts

pytestmark = pytest.mark.slow

NAMES = "#ranking tbody th a"
SIZE, ELEMENTS = 3_000_000, 3000
"""The most bytes of the file, and the most elements of its first view; how soon that is shown,
`python -m tests.generators.opening` measures."""


def expected(group, direction="", case=""):
    """The names in the order of the ranking, as the records have them."""
    (shown,) = (each for each in group.site.devices if each.slug == "gpu-b")
    section = shown.section("rope")
    for ranking in views.rankings(shown, section, section.tracks[0], group.site.about):
        if (ranking.direction, ranking.case) == (direction, case):
            return [entry.solution for entry in ranking.track.entries]
    raise AssertionError("no such choice")


def speeds(page):
    """The speeds that the board shows, from top to bottom; a dash is slower than any."""
    shown = page.locator("#ranking tbody tr > :nth-child(3)").all_inner_texts()
    return [float(text.split()[0].replace("–", "-1")) for text in shown]


# --- the file -------------------------------------------------------------------------------------


def test_a_large_group_fits_and_opens_with_one_view_of_many(group, opened):
    assert group.path.stat().st_size < SIZE
    assert len(group.site.solutions) == 50 and len(group.site.devices) == 3
    page = opened(group.path)
    assert texts(page, NAMES)
    packed = page.evaluate("Object.keys(PARTS).length")
    made = page.evaluate("document.querySelectorAll('*').length")
    assert packed > 300 and made < ELEMENTS, "the other parts are not unpacked"


# --- the board ------------------------------------------------------------------------------------


def test_the_page_opens_with_the_first_ops_board(group, opened):
    page = opened(group.path)
    first = group.site.devices[0]
    assert texts(page, "h1") == [f"rope {first.device.name}"]
    assert texts(page, NAMES)


def test_a_heading_sorts_by_click_and_by_key(group, opened):
    page = opened(group.path, board())
    heading = page.locator("#ranking th", has_text="× eager")
    heading.locator("button").click()
    page.wait_for_selector("#ranking th[aria-sort=descending]")
    fast = sorted(speeds(page), reverse=True)
    assert len(set(fast)) > 3
    assert seen(page, lambda: speeds(page) == fast)
    heading.locator("button").press("Enter")
    page.wait_for_selector("#ranking th[aria-sort=ascending]")
    assert seen(page, lambda: speeds(page) == fast[::-1])
    heading.locator("button").press("Space")
    page.wait_for_selector("#ranking th[aria-sort=descending]")
    assert heading.get_attribute("aria-sort") == "descending"


@pytest.mark.parametrize("direction", ["", "forward", "backward"])
@pytest.mark.parametrize("case", ["", CASE])
def test_a_direction_and_a_case_rank_anew(group, opened, direction, case):
    page = opened(group.path, board())
    for name, value in (("direction", direction), ("case", case)):
        if value:
            settle(page, lambda name=name, value=value:
                   page.select_option(f"[name={name}]", value))  # fmt: skip
    assert texts(page, NAMES) == expected(group, direction, case)
    assert ("median µs" in "".join(texts(page, "#ranking th"))) == bool(direction and case)
    chosen = {"direction": direction, "case": case}
    address = page.evaluate("location.hash")
    assert all(f"{name}={value}" in address for name, value in chosen.items() if value)


def test_a_folder_is_shown_alone(group, opened):
    page = opened(group.path, board())
    settle(page, lambda: page.select_option("[name=who]", "member02"))
    assert texts(page, NAMES) == ["member02/rope"]
    settle(page, lambda: page.select_option("[name=who]", ""))
    settle(page, lambda: page.select_option("[name=kind]", "peers"))
    assert texts(page, NAMES) == []


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_a_deep_link_survives_a_reload(group, opened, view):
    page = opened(group.path, VIEWS[view])
    main = page.inner_text("main")
    chosen = page.locator("tr[aria-current]")
    marked = chosen.inner_text() if "row=" in VIEWS[view] else ""
    page.reload()
    page.wait_for_selector(READY, state="attached")
    assert page.inner_text("main") == main
    if marked:
        assert chosen.inner_text() == marked
        assert chosen.is_visible()
        assert ("member04/rope" if view == "board" else CASE) in marked


def test_a_row_has_a_link_of_its_own(group, opened):
    page = opened(group.path, board())
    settle(page, lambda: page.locator("tr[data-row='member08/rope'] .place a").click())
    assert page.locator("tr[aria-current]").get_attribute("data-row") == "member08/rope"
    assert page.evaluate("location.hash").endswith("row=member08%2Frope")


def test_views_switch_and_the_way_back_leads_back(group, opened):
    page = opened(group.path, board())
    settle(page, lambda: page.locator(NAMES, has_text="member04/rope").click())
    assert texts(page, "h1") == ["member04/rope"]
    settle(page, page.go_back)
    assert texts(page, "h1") == ["rope GPU B"]
    settle(page, lambda: page.click("[data-view=devices]"))
    assert texts(page, "h1") == ["Devices side by side"]


@pytest.mark.parametrize("address", ["#view=solution&name=nobody", "#view=compare&one=a&other=b",
                                     "#view=constructor", board(op="x")])  # fmt: skip
def test_a_link_to_nothing_says_so(group, opened, address):
    page = opened(group.path, address)
    assert texts(page, "h1") == ["Not here"]


# --- a solution and two of them -------------------------------------------------------------------


def failing(group):
    """A solution of rope that fails a case on some device."""
    tracks = [track for shown in group.site.devices for track in shown.section("rope").tracks]
    return next(entry.solution for track in tracks for entry in track.entries if entry.failures)


def test_a_solution_shows_all_that_is_known_of_it(group, opened):
    name = failing(group)
    handle = name.partition("/")[0]
    page = opened(group.path, link(view="solution", name=name))
    assert len(texts(page, "[data-part=standing] tbody tr")) == 6  # 3 devices of 2 tracks
    page.locator("details").evaluate_all("all => all.forEach((each) => (each.open = true))")
    assert len(texts(page, "[data-part=cases] [data-both] tbody tr")) == 3 * 22
    assert len(texts(page, "[data-part=kernels] tbody tr")) == 8
    assert "INCORRECT_NUMERICAL" in page.inner_text("[data-part=cases]")
    assert "5.1 times eager's error" in page.inner_text("[data-part=cases]")
    assert page.locator("[data-part=readme] h3").first.inner_text() == "house"
    source = (group.path.parents[1] / "contributors" / handle / "rope.py").read_text()
    shown = page.locator(f"[data-file='file/{handle}/rope.py']").text_content()
    assert shown.rstrip("\n") == source.rstrip("\n")
    kernels = page.locator(f"[data-file='file/{handle}/rope.py'] .kernel")
    assert kernels.first.inner_text().strip() == "@triton.jit"
    page.wait_for_selector("[data-part=history] canvas")


def median(group, solution, case):
    """The forward time of a case of the first device's main track, as the board ranks it."""
    track = group.site.devices[0].section("rope").tracks[0]
    (entry,) = (each for each in track.entries if each.solution == solution)
    return entry.cells[case, "forward"].gpu["solution"].median


def test_two_solutions_times_stand_side_by_side(group, opened):
    page = opened(
        group.path, link(view="compare", one="member04/rope", other="member05/masked_ffn")
    )
    settle(page, lambda: page.select_option("[name=other]", "member06/rope"))
    assert not texts(page, ".diff .differ"), "both are copies of one file"
    table = page.locator("[data-merged] table", has_text="median µs").first
    case = "sbhd-64x2x32x128-bfloat16"
    row = table.locator("tbody tr").first.locator("th, td").all_inner_texts()
    one, other = (median(group, name, case) for name in ("member04/rope", "member06/rope"))
    assert row[:3] == [case, "forward", f"{other / one:.2f}"]
    assert row[3].startswith(f"{one:,.1f}") and row[6].startswith(f"{other:,.1f}")
    assert table.locator("thead tr").first.inner_text().split()[-2:] == [
        "member04/rope", "member06/rope",
    ]  # fmt: skip
    assert len(texts(page, "[data-beside] > div")) == 2


def test_each_side_of_a_comparison_is_a_whole_source(group, opened):
    one, other = "member04/rope", "member04/masked_linear"
    page = opened(group.path, link(view="compare", one=one, other=other))
    folder = group.path.parents[1] / "contributors" / "member04"
    helpers = [name for name in made_up.SOURCES[1:] if name.endswith(".py")]
    for side, first in ((2, "rope.py"), (4, "masked_linear.py")):
        cells = page.locator(f".diff tbody td:nth-child({side}):not(.none)").all_text_contents()
        source = "\n".join((folder / name).read_text() for name in (first, *helpers))
        assert [line.strip() for line in cells if line.strip()] == [
            line.strip() for line in source.splitlines() if line.strip()
        ]
    differing = texts(page, ".diff .differ")
    assert differing and all("cos" in row or "tan" in row for row in differing)
    assert all(row.count("−") and row.count("+") for row in differing)
