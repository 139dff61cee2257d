"""Fixtures for the page in a real browser, headless and without a network: `opened` and a group.

The fixtures are a plugin, which conftest.py names, so that no test module has to import them.
"""

import shutil
from collections import namedtuple

import pytest

from tests.support import made_up
from tests.support.waiting import LONGEST, wait_until

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
READY = "html[data-ready]"
WAIT = 1000 * LONGEST
"""Milliseconds after which an action on a page is given up, so that a hang ends."""
USUAL = {"locale": "en-US", "timezone_id": "UTC", "color_scheme": "light"}
"""What a test does not choose; a browser would take some of it from the environment."""
Group = namedtuple("Group", "site path")


@pytest.fixture(scope="session")
def group(tmp_path_factory):
    """The made-up group's site, and the page that shows it."""
    folder = tmp_path_factory.mktemp("group")
    site = made_up.site(folder)
    return Group(site, site.write(folder / "site"))


def chromium():
    """Return the path of Debian's Chromium, or None; Playwright's own would be downloaded."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="session")
def browser():
    """Chromium, headless; a test that needs it is skipped where there is none."""
    reason = "Playwright is not installed: pip install playwright"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    if not (found := chromium()):
        pytest.skip("no Chromium to open the page in: apt-get install chromium")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=found, args=["--no-sandbox"],
                                            timeout=WAIT)  # fmt: skip
        yield launched
        launched.close()


@pytest.fixture
def opened(browser):
    """Open a page from the disk; at the end, fail where it asked for anything or complained."""
    contexts, requests, complaints = [], [], []

    def opened(path, address="", **options):
        context = browser.new_context(offline=True, **USUAL | options)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{path.as_uri()}{address}")
        page.wait_for_selector(READY, state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    asked = [url for url in requests if not url.startswith(("file:", "data:"))]
    assert not asked
    assert not complaints


def settle(page, action):
    """Do something that changes the view, and wait until it is shown."""
    before = page.evaluate("document.documentElement.dataset.ready")
    action()
    page.wait_for_function("before => document.documentElement.dataset.ready !== before",
                           arg=before)  # fmt: skip


def go(page, address):
    """Follow an address within the page."""
    settle(page, lambda: page.evaluate("address => { location.hash = address }", address))


def texts(page, selector):
    """The visible texts of the elements."""
    return [each.inner_text() for each in page.locator(selector).all() if each.is_visible()]


def seen(page, look):
    """Whether a look at the page finds what it looks for, which is waited for."""

    def again():
        page.wait_for_timeout(10)  # the page goes on meanwhile
        return look()

    return look() or wait_until(again)
