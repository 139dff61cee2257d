"""Every link, anchor and file that the pages name exists."""

import re

import pytest

from common.paths import ROOT
from tests.support.markdown import anchors

pytestmark = pytest.mark.slow

PAGES = sorted(
    [ROOT / "README.md", ROOT / "README.ko.md", ROOT / "CONTRIBUTING.md", ROOT / "LEADERBOARD.md"]
    + [*ROOT.glob("docs/*.md"), *ROOT.glob("contributors/[!_]*/README.md")]
    + [*ROOT.glob("tests/corpus/*/README.md")]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"(?<![\w/<>.-])(?:common|tests|contributors|docs)/[\w/.-]+\.(?:py|md|svg)\b")
ANSWERS = (
    ("a verdict is formed", "common/grading/grade.py"),
    ("a call is timed", "common/sandbox/clock.py"),
    ("an address is checked, without a GPU", "common/sandbox/interpreter/bounds.py"),
    ("the row is written, as a line of JSON", "common/records/jsonl.py"),
)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def without_examples(text):
    """The text without its blocks of code, which name files that a reader is to write."""
    return re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)


@every_page
def test_every_link_leads_somewhere(page):
    lost = []
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            lost.append(link)
    assert not lost


@every_page
def test_every_file_that_is_named_exists(page):
    named = set(FILE.findall(without_examples(page.read_text()))) - {"contributors/alice/rope.py"}
    assert not sorted(name for name in named if not (ROOT / name).exists()
                      and not (page.parent / name).exists())  # fmt: skip


@pytest.mark.parametrize(("where", "file"), ANSWERS)
def test_the_readme_says_which_file_does_what(where, file):
    assert f"| {where} | [{file}]({file}) |" in (ROOT / "README.md").read_text()
