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
STEPS = (
    "common/solutions.py",
    "common/grading/problem.py",
    "common/grading/grade.py",
    "common/grading/worker.py",
    "common/sandbox/process.py",
    "common/sandbox/interpreter/bounds.py",
    "common/sandbox/clock.py",
    "common/measure/rows.py",
    "common/records/lines.py",
    "common/board/ranking.py",
)
"""Files on a case's way from the command to the board."""
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


def test_the_readme_leads_to_the_way_of_a_case_and_it_passes_each_step():
    assert "](docs/architecture.md)" in (ROOT / "README.md").read_text()
    page = ROOT / "docs" / "architecture.md"
    linked = {(page.parent / link).resolve() for link in LINK.findall(page.read_text())}
    assert {ROOT / file for file in STEPS} <= linked
