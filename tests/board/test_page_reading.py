"""The page in a browser: by keyboard and screen reader, narrow, dark, in Korean, with bad texts."""

import dataclasses
import random

import pytest

from common.board.page import site as pages
from common.board.page.drawing import link
from common.board.page.views import Site
from common.records.runs import Results
from common.solutions import Solution
from tests.support import made_up
from tests.support.addresses import VIEWS, board
from tests.support.boards import RUN, row
from tests.support.browsing import READY, go, seen, settle, texts

pytestmark = pytest.mark.slow

NARROW = {"width": 390, "height": 844}
EVERY = {**VIEWS, "missing": "#view=solution&name=nobody"}
HOSTILE = """<script>document.title = "hacked"</script><img src=x onerror=alert(1)>
</script></template></textarea> [a](javascript:alert(1)) ![b](http://example.com/b.png) \x1b[31m
{{ 7 * 7 }} {% raw %} | **bold** `code` \u202e &lt;b&gt;
"""

# --- reach ----------------------------------------------------------------------------------------


# The further lines of a source and rows of a table are like the first ones, and take axe as long.
FEWER_LINES = """() => document.querySelectorAll(
  ".line:nth-of-type(n+30), tr:nth-of-type(n+20)").forEach((each) => each.remove())"""
# Nothing but the colours differs in the dark.
ALONE = {"light": {}, "dark": {"runOnly": {"type": "rule", "values": ["color-contrast"]}}}


def views(group, opened, **options):
    """Yield the name of each view, and the page that shows it: to open one takes a second."""
    page = None
    for name, address in EVERY.items():
        if page:
            go(page, address)
        page = page or opened(group.path, address, **options)
        yield name, page


@pytest.mark.parametrize("scheme", ALONE)
def test_axe_finds_nothing(group, opened, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    options = {"resultTypes": ["violations"]} | ALONE[scheme]
    found = []
    # the policy would refuse axe's own script
    for view, page in views(group, opened, color_scheme=scheme, bypass_csp=True):
        page.evaluate(FEWER_LINES)
        response = axe.run(page, options=options).response
        assert response["passes"]
        found += [(view, each["id"], each["nodes"][0]["html"][:200])
                  for each in response["violations"]]  # fmt: skip
    assert not found


def test_a_phone_shows_all_of_a_view_without_scrolling_sideways(group, opened):
    for view, page in views(group, opened, viewport=NARROW):
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= NARROW["width"], view
        cut = page.locator("main").evaluate(
            """(main, width) => [
                ...main.querySelectorAll("h1, h2, label, .cards td, .cards th, .note")]
            .filter((each) => each.checkVisibility() && !each.closest(".scroll[tabindex]"))
            .filter((each) => each.getBoundingClientRect().right > width + 1)
            .map((each) => each.textContent.trim().slice(0, 80))""",
            NARROW["width"],
        )
        assert not cut, view


def test_the_keyboard_skips_to_the_content_and_sees_where_it_is(group, opened):
    page = opened(group.path)
    page.keyboard.press("Tab")
    skip = page.locator(".skip")
    assert skip.bounding_box()["x"] >= 0, "shown while it has the focus"
    assert skip.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "H1"


def test_the_focus_follows_a_new_view_and_stays_in_a_filter(group, opened):
    page = opened(group.path, board())
    page.focus("[name=kind]")
    settle(page, lambda: page.select_option("[name=kind]", "contributors"))
    assert page.evaluate("document.activeElement.name") == "kind"
    go(page, VIEWS["compare"])
    assert page.evaluate("document.activeElement.tagName") == "H1"


# --- charts ---------------------------------------------------------------------------------------


def pixels(page):
    """The first chart's picture."""
    return page.locator(".chart canvas").first.evaluate("each => each.toDataURL()")


def test_a_chart_tells_values_hides_lines_and_changes_its_scale(group, opened):
    page = opened(group.path, board())
    figure = page.locator(".chart").first
    first = pixels(page)
    scale = figure.locator("[data-scale]")
    assert scale.get_attribute("aria-pressed") == "true"
    scale.click()
    assert scale.get_attribute("aria-pressed") == "false"
    assert seen(page, lambda: pixels(page) != first)
    linear = pixels(page)
    name = figure.locator(".u-legend .u-series:nth-child(2)")
    name.locator("th").press("Enter")
    assert "u-off" in name.get_attribute("class")
    assert seen(page, lambda: pixels(page) != linear)
    assert name.locator(".u-value").inner_text() in ("–", "")
    figure.locator(".u-over").hover()
    values = figure.locator(".u-legend .u-value").all_inner_texts
    assert seen(page, lambda: values()[0].startswith("sbhd-"))
    assert float(values()[2].replace(",", "")) > 0


# --- themes and languages -------------------------------------------------------------------------


def paper(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_theme_is_the_systems_until_one_is_chosen(group, opened):
    page = opened(group.path, color_scheme="light")
    light, bright = paper(page), pixels(page)
    page.select_option("#theme", "dark")
    assert paper(page) != light and seen(page, lambda: pixels(page) != bright)
    page.reload()
    page.wait_for_selector(READY, state="attached")
    assert paper(page) != light
    page.select_option("#theme", "")
    assert paper(page) == light
    page.emulate_media(color_scheme="dark")
    assert paper(page) != light


# Words of the page that no element marks as a name, in elements that the view shows.
ENGLISH = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = new Set();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const own = node.parentElement;
    if (own.translate && !own.closest("script, style, noscript, .u-legend") &&
        /[a-z]{3}/.test(node.data) && !/[가-힣]/.test(node.data)) found.add(node.data.trim());
  }
  for (const own of document.querySelectorAll("[aria-label], [title], [data-label]")) {
    for (const name of ["aria-label", "title", "data-label"]) {
      const text = own.translate && own.getAttribute(name);
      if (text && /[a-z]{3}/.test(text) && !/[가-힣]/.test(text)) found.add(text);
    }
  }
  return [...found];
}"""


def test_every_word_of_the_page_is_there_in_korean(group, opened):
    for view, page in views(group, opened, locale="ko-KR"):
        assert page.evaluate("document.documentElement.lang") == "ko"
        assert page.evaluate(ENGLISH) == [], view


def test_the_language_is_switched_and_kept(group, opened):
    page = opened(group.path, EVERY["solution"], locale="en-US")
    assert "Compiled kernels" in page.inner_text("main")
    with page.expect_navigation():
        page.select_option("#language", "ko")
    page.wait_for_selector(READY, state="attached")
    assert "Compiled kernels" not in page.inner_text("main")
    assert texts(page, "h1") == ["member04/rope"], "the view is the same"


# --- texts of others ------------------------------------------------------------------------------


def small(folder, rows, **notes):
    """A page of a few solutions with these notes and READMEs."""
    for handle, note in notes.items():
        (folder / handle).mkdir()
        (folder / handle / "rope.py").write_text(f'"""{note}"""\n# {note.splitlines()[0]}\n')
        (folder / handle / "README.md").write_text(note)
    everyone = [Solution(folder / handle / "rope.py", "rope") for handle in notes]
    results = Results(folder / "a-gpu", runs=[RUN], rows=rows)
    return pages.write(Site.of([results], everyone), folder / "site")


def test_texts_of_others_stay_texts(tmp_path, opened):
    rows = [row("mallory/rope"), row("alice/rope", verdict="CRASHED", reason=HOSTILE, gpu={})]
    path = small(tmp_path, rows, mallory=HOSTILE, alice="plain")
    page = opened(path)
    one, other = "mallory/rope", "alice/rope"
    views = [link(view="solution", name=name) for name in (one, other)]
    for address in ("", *views, link(view="compare", one=one, other=other)):
        if address:
            go(page, address)
        assert page.locator("main script, main img, main [onerror]").count() == 0
        assert page.locator("main a[href^='javascript']").count() == 0
        assert "hacked" not in page.title()
        shown = page.locator("main").text_content()
        assert not set(shown) & set("\x1b\u202e"), "marks that turn or colour what is read"
        assert '<script>document.title = "hacked"</script>' in page.locator("main").text_content()


def test_a_handle_of_markup_is_a_name(tmp_path, opened):
    handle = "<b>&\"'"
    page = opened(small(tmp_path, [row(f"{handle}/rope")], **{handle: "odd"}))
    assert texts(page, "#ranking tbody th a") == [f"{handle}/rope"]
    settle(page, lambda: page.locator("#ranking tbody th a").click())
    assert texts(page, "h1") == [f"{handle}/rope"]


def test_ties_disturbances_and_old_sources_are_marked(tmp_path, opened):
    rows = [
        row("alice/rope", us=[9.0, 10.0, 11.0]),
        row("bob/rope", us=[9.5, 10.5, 11.5], device_state={"others": 1}),
        row("carol/rope", us=50.0, device_state={"slow_host_probes": 1}),
    ]
    path = small(tmp_path, rows, alice="one", bob="two", carol="three")
    page = opened(path)
    places = dict(zip(texts(page, "#ranking tbody th a"), texts(page, ".place"), strict=True))
    assert places == {"alice/rope": "1=", "bob/rope": "1=", "carol/rope": "3"}
    marks = {each: each in page.locator("tr[data-row='bob/rope']").inner_text()
             for each in ("source changed since", "GPU disturbed")}  # fmt: skip
    assert all(marks.values())
    carols = page.locator("tr[data-row='carol/rope'] .badge.disturbed")
    assert carols.all_inner_texts() == ["host disturbed"]
    go(page, link(view="solution", name="bob/rope"))
    assert "The source below is not what was measured on A GPU" in page.inner_text(".facts")
    assert page.locator(".badge.disturbed").first.get_attribute("title")


def test_the_source_that_was_measured_is_not_marked(tmp_path, opened):
    everyone = made_up.solutions(tmp_path / "contributors")[:2]
    results = made_up.results(tmp_path, "A GPU", everyone, random.Random(1))
    page = opened(pages.write(Site.of([dataclasses.replace(results)], everyone), tmp_path / "site"))
    assert not texts(page, ".badge.stale")
