"""The pictures of docs/page.md, drawn anew from the committed records.

    python -m tests.generators.pictures

They need Chromium, Playwright and a Korean font. Look at each one before it is committed.
"""

import io
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from common.paths import ROOT
from tests.support.browsing import READY, chromium

FOLDER = ROOT / "docs" / "page"
SITE = ROOT / "site" / "index.html"
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 1.5}
OVERVIEW = "#view=overview"
ROPE = "#view=board&device=nvidia-h200&op=rope"
BOARD = f"{ROPE}&track=standard"
CASE = f"{ROPE}&track=core&case=sbhd-16384x1x8x256-float32"
SOLUTION = "#view=solution&name=house%2Frope"
COMPARED = "#view=compare&one=hannnnnnnnnnnnn%2Frope_v1&other=hannnnnnnnnnnnn%2Frope"


class Picture(NamedTuple):
    """A view of the page, and what of it is seen."""

    address: str
    height: int = 860
    at: str = ""
    """The element that the picture begins with; empty for the top."""
    point: str = ""
    """The element under the pointer."""
    options: Mapping[str, Any] = MappingProxyType({})


PICTURES = {
    "overview": Picture(OVERVIEW),
    "board-light": Picture(BOARD),
    "board-dark": Picture(BOARD, options={"color_scheme": "dark"}),
    "case": Picture(CASE, 760),
    "chart": Picture(BOARD, 640, ".chart", ".u-over"),
    "solution": Picture(SOLUTION, 900),
    "source": Picture(SOLUTION, 800, "[data-part=source]"),
    "compare-times": Picture(COMPARED, 760, options={"color_scheme": "dark"}),
    "korean": Picture(BOARD, options={"locale": "ko-KR"}),
    "phone-overview": Picture(OVERVIEW, options=PHONE),
    "phone-board": Picture(BOARD, options=PHONE),
    "phone-solution": Picture(SOLUTION, options=PHONE),
    "phone-compare": Picture(COMPARED, options=PHONE),
    "phone-korean": Picture(SOLUTION, options=PHONE | {"locale": "ko-KR"}),
}


def _taken(page: Page, site: Path, picture: Picture) -> bytes:
    """Return the picture as a PNG of 256 colours, a third of the size."""
    page.goto(site.as_uri() + picture.address)
    page.wait_for_selector(READY, state="attached")
    if picture.at:
        page.locator(picture.at).first.evaluate("each => each.scrollIntoView()")
    if picture.point:
        page.locator(picture.point).first.hover()
    content = io.BytesIO()
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    shot.quantize(256, dither=Image.Dither.NONE).save(content, "PNG", optimize=True)
    return content.getvalue()


def draw(site: Path, pictures: Mapping[str, Picture], folder: Path) -> None:
    """Draw pictures of the page into a folder."""
    if not site.exists():
        raise SystemExit("site/index.html is missing: run nox -s leaderboard")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, picture in pictures.items():
            size = {"viewport": {"width": 1300, "height": picture.height}}
            options = {"locale": "en-US"} | size | picture.options
            with browser.new_page(offline=True, **options) as page:
                (folder / f"{name}.png").write_bytes(_taken(page, site, picture))
        browser.close()


if __name__ == "__main__":
    if not subprocess.run(["fc-list", ":lang=ko"], capture_output=True, check=True).stdout:
        raise SystemExit("no font has Korean letters: apt-get install fonts-nanum")
    draw(SITE, PICTURES, FOLDER)
