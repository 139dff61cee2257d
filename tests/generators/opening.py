"""How soon the page of a large group is usable, in Chromium.

    python -m tests.generators.opening

It prints the seconds from opening the file to its first view, of five times each; a laptop is to
show it within one, on idle cores.
"""

import tempfile
from pathlib import Path
from statistics import median

from playwright.sync_api import sync_playwright

from common.board.page import site as pages
from tests.support import made_up
from tests.support.browsing import READY, chromium

TIMES = 5
SHOWN = "performance.getEntriesByName('shown')[0].startTime"


def opened(browser, path):
    """Return the seconds until the page shows its first view."""
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector(READY, state="attached")
    took = page.evaluate(SHOWN) / 1000
    context.close()
    return took


def main():
    """Print a line."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        path = pages.write(made_up.site(Path(folder)), Path(folder) / "site")
        browser = started.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        took = [opened(browser, path) for _ in range(TIMES)]
        browser.close()
    print(f"{path.name} is shown after {min(took):.2f} s at least, {median(took):.2f} s as a rule")


if __name__ == "__main__":
    main()
