"""Texts of others, made safe to print: a terminal obeys escape sequences, whoever wrote them."""


def printable(text: str) -> str:
    r"""Return the text with a blank for each character that prints nothing.

    Escape sequences, newlines and marks that turn the direction of writing are among them.

    >>> printable("red: \x1b[31m")
    'red:  [31m'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)
