"""README.ko.md is in step with README.md: commands, headings, tables, code and links."""

import re

import pytest
from markdown_it import MarkdownIt

from common.commands.leaderboard import READMES
from common.paths import ROOT

pytestmark = pytest.mark.slow

ENGLISH, KOREAN = (ROOT / name for name in READMES)
BOARD = re.compile(r"<!-- (board|picture) -->.*?<!-- /\1 -->", re.DOTALL)
HANGUL = re.compile("[가-힣]")


def own(path):
    """The page's tokens without what is drawn from records, one list with those of each line."""
    text = BOARD.sub("", path.read_text())
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return [part for token in tokens for part in (token, *(token.children or ()))]


def headings(path):
    """The levels of the headings."""
    return [token.tag for token in own(path) if token.type == "heading_open"]


def commands(path):
    """The lines of blocks of code, without what each says of itself."""
    blocks = [token.content for token in own(path) if token.type in ("code_block", "fence")]
    return [re.split(r"\s+#|\s{2,}(?=\S)", line.strip())[0]
            for block in blocks for line in block.splitlines()]  # fmt: skip


def tables(path):
    """For each table, the number of its rows and of the cells of all."""
    kinds = ("table_open", "tr_open", "td_open", "th_open")
    return [token.type for token in own(path) if token.type in kinds]


def code(path):
    """The pieces of code within text; a sentence may order them in another way."""
    return sorted(token.content for token in own(path) if token.type == "code_inline")


def links(path):
    """The targets of links; the two pages name each other, and sections in their own words."""
    targets = (token.attrs["href"] for token in own(path) if token.type == "link_open")
    return sorted("#" if target.startswith("#") else target for target in targets
                  if not target.startswith("README"))  # fmt: skip


@pytest.mark.parametrize("part", [headings, commands, tables, code, links])
def test_both_pages_have_the_same(part):
    english, korean = part(ENGLISH), part(KOREAN)
    assert english
    assert korean == english


def test_both_pages_show_the_same_picture_and_one_the_board():
    english, korean = ({match[1]: match[0] for match in BOARD.finditer(path.read_text())}
                       for path in (ENGLISH, KOREAN))  # fmt: skip
    assert english.keys() == {"board", "picture"}
    assert korean == {"picture": english["picture"]}


def test_each_heading_and_paragraph_is_in_korean():
    """Headings are, but for the title; so is each paragraph that has more than code and names."""
    tokens = own(KOREAN)
    texts = ["".join(child.content for child in token.children if child.type == "text")
             for token in tokens if token.type == "inline"]  # fmt: skip
    english = [text for text in texts if len(text.split()) > 3 and not HANGUL.search(text)]
    assert not english
