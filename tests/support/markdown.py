"""What a reader of Markdown finds: the anchors of a page, the columns of a table's line."""

import re


def anchors(text):
    """The names that a page's headings can be linked by."""
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def columns(line):
    """The number of bars in a line of a table that part its columns."""
    return line.replace(r"\|", "").count("|")
