"""The Korean pages are in step with the English ones: commands, headings, tables, code, links."""

import re

import pytest
from markdown_it import MarkdownIt

from common.commands.leaderboard import READMES
from common.paths import ROOT

ENGLISH, KOREAN = (ROOT / name for name in READMES)
PAGES = [(ENGLISH, KOREAN), (ROOT / "CONTRIBUTING.md", ROOT / "CONTRIBUTING.ko.md")]
DRAWN = re.compile(r"<!-- (board|picture) -->.*?<!-- /\1 -->", re.DOTALL)
COMMAND = re.compile("git|nox|python3")
HANGUL = re.compile("[가-힣]")


def own(path):
    """The page's tokens without what is drawn from records, one list with those of each line."""
    # of CONTRIBUTING.md only the steps are in Korean
    text = DRAWN.sub("", path.read_text()).partition("## Further pages")[0]
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return [part for token in tokens for part in (token, *(token.children or ()))]


def commands(tokens):
    """The commands in blocks of code, without what each says of itself."""
    blocks = [token.content for token in tokens if token.type in ("code_block", "fence")]
    return [re.split(r"\s+#|\s{2,}(?=\S)", line.strip())[0]
            for block in blocks for line in block.splitlines() if COMMAND.match(line)]  # fmt: skip


def links(tokens):
    """The targets of links; the two pages name each other, and sections in their own words."""
    targets = [token.attrs["href"] for token in tokens if token.type == "link_open"]
    return sorted("#" if target.startswith("#") else target.replace(".ko.md", ".md")
                  for target in targets
                  if not target.startswith(("README", "CONTRIBUTING")))  # fmt: skip


PARTS = {
    "headings": lambda tokens: [t.tag for t in tokens if t.type == "heading_open"],
    "tables": lambda tokens: [
        t.type for t in tokens if t.type in ("table_open", "tr_open", "td_open", "th_open")
    ],
    # a sentence may order them in another way
    "code": lambda tokens: sorted(t.content for t in tokens if t.type == "code_inline"),
    "commands": commands,
    "links": links,
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("pages", PAGES, ids=lambda pages: pages[0].stem)
def test_both_pages_have_the_same(pages, part):
    english, korean = (PARTS[part](own(page)) for page in pages)
    assert english or (part == "tables" and pages != PAGES[0])
    assert korean == english


def test_both_pages_show_the_same_board_and_picture():
    english, korean = ({match[1]: match[0] for match in DRAWN.finditer(path.read_text())}
                       for path in (ENGLISH, KOREAN))  # fmt: skip
    assert korean == english and {*korean} == {"board", "picture"}


@pytest.mark.parametrize("korean", [korean for _, korean in PAGES], ids=lambda page: page.stem)
def test_each_heading_and_paragraph_is_in_korean(korean):
    """The title is not, nor is a paragraph that has code and names alone."""
    texts = ["".join(child.content for child in token.children if child.type == "text")
             for token in own(korean) if token.type == "inline"]  # fmt: skip
    assert not [text for text in texts if len(text.split()) > 3 and not HANGUL.search(text)]
