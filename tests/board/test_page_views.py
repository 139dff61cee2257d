"""The page in a browser: its views and links, a phone, Korean, accessibility, bad texts."""

import pytest

from common.board.columns import time
from common.board.page.rendering import link
from common.board.ranking import QUANTITIES
from common.board.table import figure
from common.records.runs import Results
from common.solutions import Solution
from tests.support.boards import RUN, row
from tests.support.browsing import READY, go, seen, settle, texts
from tests.support.made_up import site_of

pytestmark = pytest.mark.slow

CASE = "sbhd-128x2x32x128-bfloat16"


def board(**fields):
    return link(**{"view": "board", "device": "gpu-b", "op": "rope", "track": "core"} | fields)


VIEWS = {
    "board": board(case=CASE, row="member04/rope"),
    "solution": link(view="solution", name="member04/rope", row=f"gpu-a/{CASE}"),
    "compare": link(view="compare", one="member04/rope", other="member06/rope"),
    "missing": "#view=solution&name=nobody",
}
NAMES = "#ranking tbody th a"
SIZE, ELEMENTS = 3_000_000, 3000
"""The most bytes of the file, and the most elements of its first view."""


def rankings(group, slug="gpu-b"):
    """The rankings of rope's main track on a device, for each case."""
    boards = [board for board in group.site.boards if board.device.slug == slug]
    return next(board.choices for board in boards if board.track.op == "rope")


def every_view(group, opened, **options):
    """Yield the name of each view, and the page that shows it: to open one takes a second."""
    page = None
    for name, address in VIEWS.items():
        if page:
            go(page, address)
        page = page or opened(group.path, address, **options)
        yield name, page


# --- the board ------------------------------------------------------------------------------------


def test_the_page_opens_with_the_fastest_of_every_op_and_leads_to_its_board(group, opened):
    assert group.path.stat().st_size < SIZE
    assert len(group.site.solutions) == 26 and len(group.site.devices) == 3
    page = opened(group.path)
    assert texts(page, "h1") == ["All ops"]
    main = group.site.mains[0]
    assert len(texts(page, ".bars caption")) == len(group.site.mains)
    first, best = page.locator(".bars").first, {}
    for entry in main.track.placed(main.track.main):
        best.setdefault(entry.handle, entry)
    assert first.locator("tbody th").all_inner_texts() == list(best)[:12]
    leader = next(iter(best.values()))
    assert first.locator(".num").first.inner_text() == figure(leader.scores[main.track.main], False)
    first.locator("caption a").click()
    page.wait_for_selector("#ranking tbody tr")
    assert texts(page, "h1") == [f"rope {main.device.name}"]
    assert texts(page, NAMES) and not texts(page, ".badge.stale")
    assert page.evaluate("document.querySelectorAll('*').length") < ELEMENTS


def test_a_case_ranks_anew(group, opened):
    page = opened(group.path, board())
    for case in (None, CASE, ""):
        if case is not None:
            settle(page, lambda case=case: page.select_option("[name=case]", case))
        entries = rankings(group)[case or ""].entries
        assert texts(page, NAMES) == [entry.solution for entry in entries]
        assert ("µs" in "".join(texts(page, "#ranking td.quantity"))) == bool(case)
        assert (f"case={CASE}" in page.evaluate("location.hash")) == bool(case)


def test_a_chart_tells_values_and_hides_a_line_by_key(group, opened):
    page = opened(group.path, board())
    figure = page.locator(".chart").first

    def pixels():
        return figure.locator("canvas").evaluate("each => each.toDataURL()")

    first, name = pixels(), figure.locator(".u-legend .u-series:nth-child(2)")
    name.locator("th").press("Enter")
    assert "u-off" in name.get_attribute("class")
    assert seen(page, lambda: pixels() != first)
    figure.locator(".u-over").hover()
    values = figure.locator(".u-legend .u-value").all_inner_texts
    assert seen(page, lambda: values()[0].startswith("sbhd-"))
    assert float(values()[2].replace(",", "")) > 0


# --- links ----------------------------------------------------------------------------------------


def test_a_deep_link_survives_a_reload(group, opened):
    for view, page in every_view(group, opened):
        main, chosen = page.inner_text("main"), page.locator("tr[aria-current]")
        page.reload()
        page.wait_for_selector(READY, state="attached")
        assert page.inner_text("main") == main
        if "row=" in VIEWS[view]:
            assert chosen.is_visible()
            assert ("member04/rope" if view == "board" else CASE) in chosen.inner_text()


def test_rows_and_views_have_links_the_way_back_leads_back_and_nothing_says_so(group, opened):
    page = opened(group.path, board())
    settle(page, lambda: page.locator("tr[data-row='member08/rope'] a.place").first.click())
    assert page.locator("tr[aria-current]").get_attribute("data-row") == "member08/rope"
    assert page.evaluate("location.hash").endswith("row=member08%2Frope")
    settle(page, lambda: page.locator(NAMES, has_text="member04/rope").click())
    assert texts(page, "h1") == ["member04/rope"]
    settle(page, page.go_back)
    assert texts(page, "h1") == ["rope GPU B"]
    settle(page, lambda: page.click("[data-view=overview]"))
    assert texts(page, "h1") == ["All ops"]
    for address in (VIEWS["missing"], "#view=compare&one=a&other=b", "#view=constructor",
                    board(op="x")):  # fmt: skip
        go(page, address)
        assert texts(page, "h1") == ["Not here"]


# --- a solution and two of them -------------------------------------------------------------------


def test_a_solution_shows_all_that_is_known_of_it(group, opened):
    boards = [board for board in group.site.boards if board.track.op == "rope"]
    folder = group.path.parents[1] / "contributors"
    name = next(e.solution for board in boards for e in board.track.entries if e.missing)
    page = opened(group.path, link(view="solution", name=name))
    assert len(texts(page, "[data-part=standing] tbody tr")) == 6  # 3 devices of 2 tracks
    page.locator("details").evaluate_all("all => all.forEach((each) => (each.open = true))")
    assert len(texts(page, "[data-part=cases] [data-both] tbody tr")) == 3 * 11
    assert "INCORRECT_NUMERICAL" in page.inner_text("[data-part=cases]")
    assert "5.1 times eager's error" in page.inner_text("[data-part=cases]")
    source = folder / f"{name}.py"
    shown = page.locator(".source code").first
    assert shown.text_content().rstrip("\n") == source.read_text().rstrip("\n")
    page.wait_for_selector("[data-part=cases] canvas")


def test_two_solutions_times_stand_side_by_side(group, opened):
    names = ("member04/rope", "member06/rope")
    page = opened(group.path, link(view="compare", one=names[0], other="member05/masked_ffn"))
    settle(page, lambda: page.select_option("[name=other]", names[1]))
    table = page.locator("[data-merged] table", has_text="µs").first
    case = "sbhd-64x2x32x128-bfloat16"
    cells = table.locator("tbody tr", has_text=case).first.locator("th, td").all_inner_texts()
    track = rankings(group, group.site.devices[0].slug)[case]
    forward, (one, other) = QUANTITIES[0], map(track.entry, names)
    one, other = (time(entry, forward).value for entry in (one, other))
    assert table.locator("thead th").all_inner_texts()[:2] == ["case", forward.name]
    assert cells[0] == case and f"{other / one:.2f} × as fast" in cells[1]
    assert f"{one:,.1f} µs" in cells[1] and f"{other:,.1f} µs" in cells[2]
    assert table.locator("caption").inner_text().endswith(" | ".join(names))


# --- reach ----------------------------------------------------------------------------------------

# The further lines of a source and rows of a table are like the first ones, and take axe as long.
FEWER_LINES = """() => document.querySelectorAll(
  ".line:nth-of-type(n+30), tr:nth-of-type(n+20)").forEach((each) => each.remove())"""


def test_axe_finds_nothing(group, opened):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = []
    for view, page in every_view(group, opened):
        for scheme, only in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            page.emulate_media(color_scheme=scheme)
            page.evaluate(FEWER_LINES)
            response = axe.run(page, options={"resultTypes": ["violations"], **only}).response
            assert response["passes"]
            found += [(view, each["id"], each["nodes"][0]["html"][:200])
                      for each in response["violations"]]  # fmt: skip
    assert not found


CUT = """(main, width) => [...main.querySelectorAll("h1, h2, label, .cards td, .cards th, .note")]
  .filter((each) => each.checkVisibility() && !each.closest(".scroll[tabindex]"))
  .filter((each) => each.getBoundingClientRect().right > width + 1)
  .map((each) => each.textContent.trim().slice(0, 80))"""


def test_a_phone_shows_all_of_a_view_without_scrolling_sideways(group, opened):
    for view, page in every_view(group, opened, viewport={"width": 390, "height": 844}):
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        assert not page.locator("main").evaluate(CUT, 390), view


def test_the_keyboard_skips_to_the_content_and_the_focus_follows_a_view(group, opened):
    page = opened(group.path, board())
    page.keyboard.press("Tab")
    assert page.locator(".skip").bounding_box()["x"] >= 0, "shown while it has the focus"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.focus("[name=case]")
    settle(page, lambda: page.select_option("[name=case]", CASE))
    assert page.evaluate("document.activeElement.name") == "case", "it stays in a filter"
    go(page, VIEWS["compare"])
    assert page.evaluate("document.activeElement.tagName") == "H1"


# Words of the page that no element marks as a name, in elements that the view shows.
ENGLISH = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = new Set();
  const english = (text) => /[a-z]{3}/.test(text) && !/[가-힣]/.test(text);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const own = node.parentElement;
    if (own.translate && !own.closest("script, style, noscript, .u-legend") && english(node.data))
      found.add(node.data.trim());
  }
  for (const own of document.querySelectorAll("[aria-label], [title], [data-label]")) {
    for (const name of ["aria-label", "title", "data-label"]) {
      const text = own.translate && own.getAttribute(name);
      if (text && english(text)) found.add(text);
    }
  }
  return [...found];
}"""


def test_every_word_is_there_in_korean_and_the_language_is_kept(group, opened):
    page = None
    for view, page in every_view(group, opened, locale="ko-KR"):
        assert page.evaluate("document.documentElement.lang") == "ko"
        assert page.evaluate(ENGLISH) == [], view
    go(page, VIEWS["solution"])
    for change in (lambda: page.select_option("#language", "en"), page.reload):
        with page.expect_navigation():
            change()
        page.wait_for_selector(READY, state="attached")
        assert "Source" in page.inner_text("main")
    assert texts(page, "h1") == ["member04/rope"], "the view is the same"


# --- texts of others ------------------------------------------------------------------------------

HOSTILE = """<script>document.title = "hacked"</script><img src=x onerror=alert(1)>
</script></template></textarea> [a](javascript:alert(1)) ![b](http://example.com/b.png) \x1b[31m
{{ 7 * 7 }} {% raw %} | **bold** `code` \u202e &lt;b&gt;
"""


def small(folder, rows, **notes):
    """A page of a few solutions with these notes and READMEs."""
    for handle, note in notes.items():
        (folder / handle).mkdir()
        (folder / handle / "rope.py").write_text(f'"""{note}"""\n# {note.splitlines()[0]}\n')
        (folder / handle / "README.md").write_text(note)
    everyone = [Solution(folder / handle / "rope.py", "rope") for handle in notes]
    results = Results(folder / "a-gpu", runs=[RUN], rows=rows)
    return site_of([results], everyone).write(folder / "site")


def test_texts_and_names_of_others_stay_texts(tmp_path, opened):
    one, other = "<b>&\"'/rope", "alice/rope"
    rows = [row(one), row(other, verdict="CRASHED", reason=HOSTILE, gpu={})]
    page = opened(
        small(tmp_path, rows, **{one.partition("/")[0]: HOSTILE}, alice="plain"), link(view="board")
    )
    assert texts(page, "#ranking tbody th a") == [one, other]
    solutions = [link(view="solution", name=name) for name in (one, other)]
    for address in ("", *solutions, link(view="compare", one=one, other=other)):
        if address:
            go(page, address)
        if "solution" in address:
            assert texts(page, "h1") == [one if address == solutions[0] else other]
        assert page.locator("main script, main img, main [onerror]").count() == 0
        assert page.locator("main a[href^='javascript']").count() == 0
        assert "hacked" not in page.title()
        shown = page.locator("main").text_content()
        assert not set(shown) & set("\x1b\u202e"), "marks that turn or colour what is read"
        assert '<script>document.title = "hacked"</script>' in shown or "compare" in address


def test_ties_disturbances_and_old_sources_are_marked(tmp_path, opened):
    rows = [
        row("alice/rope", us=[9.0, 10.0, 11.0]),
        row("bob/rope", us=[9.5, 10.5, 11.5], device_state={"slow_probes": 1}),
        row("carol/rope", us=50.0, device_state={"slow_host_probes": 1}),
    ]
    path = small(tmp_path, rows, alice="one", bob="two", carol="three")
    page = opened(path, link(view="board"))
    names, places = (texts(page, selector) for selector in (NAMES, "#ranking .place"))
    assert dict(zip(names, places, strict=True)) == {
        "alice/rope": "1=",
        "bob/rope": "1=",
        "carol/rope": "3",
    }
    bob = page.locator("tr[data-row='bob/rope']").inner_text()
    assert "source changed since" in bob and "GPU disturbed" in bob
    carols = page.locator("tr[data-row='carol/rope'] .badge.disturbed")
    assert carols.all_inner_texts() == ["host disturbed"]
    go(page, link(view="solution", name="bob/rope"))
    assert "The source below is not what was measured on A GPU" in page.inner_text(".facts")
    assert page.locator(".badge.disturbed").count()
