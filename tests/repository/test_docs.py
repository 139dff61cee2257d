"""Every link, anchor, file and name of the code that the pages give exists."""

import re

import pytest

from common import cli
from common.paths import ROOT
from tests.support.boards import anchors

pytestmark = pytest.mark.slow

PAGES = sorted(
    [ROOT / name for name in ("README.md", "README.ko.md", "CONTRIBUTING.md", "LEADERBOARD.md")]
    + [ROOT / "AGENTS.md"]
    + [*ROOT.glob("docs/*.md"), *ROOT.glob("contributors/[!_]*/README.md")]
    + [*ROOT.glob("tests/corpus/*/README.md")]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"(?<![\w/<>.-])(?:common|tests|contributors|docs)/[\w/.-]+\.(?:py|md|svg)\b")
PLACED = re.compile(r"`([\w.]+)`,?\s+(?:in|of)\s+(?:\[[^\]]*\]\(|`)?([\w/.]+\.py)\b")
"""A name and the file that a page finds it in: "`TARGETS` in [target.py](../common/target.py)"."""
DOTTED = re.compile(r"`(\w+)\.(\w+)`")
MODULES = {path.stem: path for path in sorted(ROOT.glob("common/**/*.py"), reverse=True)}
"""The modules of common by their name; of several, the first."""
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


def names_and_files(page):
    """Yield each name that a page gives with its module or file, and the paths of such files."""
    text = without_examples(page.read_text())
    for name, file in PLACED.findall(text):
        tail = "/" + file.removeprefix("../").removeprefix("common/")
        yield name, [path for path in ROOT.glob("common/**/*.py") if str(path).endswith(tail)]
    for module, name in DOTTED.findall(text):
        if module in MODULES and name != "py":
            yield name, [MODULES[module]]


def defines(path, name):
    """Return whether a file defines a function, class or variable; of `A.b`, both."""
    source = path.read_text()
    return all(re.search(rf"^ *(?:(?:class|def) {part}\b|{part}\b.*[:=])", source, re.MULTILINE)
               for part in name.split("."))  # fmt: skip


@every_page
def test_a_file_defines_the_names_that_a_page_finds_in_it(page):
    given = list(names_and_files(page))
    assert not [name for name, paths in given if not any(defines(path, name) for path in paths)]
    assert given or page.name != "architecture.md"


def test_every_test_and_kernel_of_the_table_of_promises_exists():
    rows = re.findall(r"^\|.*\| (.+) \|$", (ROOT / "docs/grading.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+(?:\.py)?)`", row)}
    existing = {path.name for path in ROOT.glob("tests/**/*")}
    lost = {name for name in named if not any(name in other for other in existing)}
    assert len(named) > 40
    assert not lost


def test_a_program_reads_forty_lines_whose_commands_exist():
    page = (ROOT / "AGENTS.md").read_text()
    commands = re.findall(r"-m common (\w+)", page)
    assert len(page.splitlines()) <= 40
    assert len(commands) > 5 and not {*commands}.difference(cli.COMMANDS)
