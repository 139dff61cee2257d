"""README.ko.md is in step with README.md: commands, headings, tables, code and links."""

import re

import pytest
from markdown_it import MarkdownIt

from common.commands.leaderboard import READMES
from common.paths import ROOT

ENGLISH, KOREAN = (ROOT / name for name in READMES)
DRAWN = re.compile(r"<!-- (board|picture) -->.*?<!-- /\1 -->", re.DOTALL)
HANGUL = re.compile("[가-힣]")


def own(path):
    """The page's tokens without what is drawn from records, one list with those of each line."""
    text = DRAWN.sub("", path.read_text())
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return [part for token in tokens for part in (token, *(token.children or ()))]


def commands(tokens):
    """The lines of blocks of code, without what each says of itself."""
    blocks = [token.content for token in tokens if token.type in ("code_block", "fence")]
    return [re.split(r"\s+#|\s{2,}(?=\S)", line.strip())[0]
            for block in blocks for line in block.splitlines()]  # fmt: skip


def links(tokens):
    """The targets of links; the two pages name each other, and sections in their own words."""
    targets = [token.attrs["href"] for token in tokens if token.type == "link_open"]
    return sorted("#" if target.startswith("#") else target for target in targets
                  if not target.startswith("README"))  # fmt: skip


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


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_both_pages_have_the_same(part):
    english = part(own(ENGLISH))
    assert english
    assert part(own(KOREAN)) == english


def test_both_pages_show_the_same_picture():
    english, korean = ({match[1]: match[0] for match in DRAWN.finditer(path.read_text())}
                       for path in (ENGLISH, KOREAN))  # fmt: skip
    assert korean == {"picture": english["picture"]}


def test_each_heading_and_paragraph_is_in_korean():
    """The title is not, nor is a paragraph that has code and names alone."""
    texts = ["".join(child.content for child in token.children if child.type == "text")
             for token in own(KOREAN) if token.type == "inline"]  # fmt: skip
    assert not [text for text in texts if len(text.split()) > 3 and not HANGUL.search(text)]
