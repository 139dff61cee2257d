"""The pictures of docs/steps.md, drawn anew: `python -m tests.generators.first_steps`.

A clone of the last commit, in which alice takes her first steps without a GPU. Each picture is what
a command prints on a terminal of 80 columns, without what git and `study` say of their progress.
Look at each picture before it is committed.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from common.paths import ROOT
from tests.generators import pictures
from tests.generators.pictures import Picture

FOLDER = ROOT / "docs" / "steps"
COLUMNS, LINES = 80, 45
"""The size of a picture at most; further lines are left out."""
ADDRESS = "https://github.com/OWNER/triton-study"
"""The repository's address, as in docs/measure.ipynb; git takes the clone from this folder."""
RIGHT, WRONG = "tl.store(y + lanes, -x2, mask=mask)", "tl.store(y + lanes, x2, mask=mask)"
MODELLED = "#view=board&device=cpu&op=rotate_half&track=core"
PAGE = {
    "page": Picture(MODELLED),
    "compare": Picture("#view=compare&one=alice%2Frotate_half&other=house%2Frotate_half"),
}
INK, PAPER = (230, 233, 238), (20, 23, 28)
_COLOURS = [PAPER, (240, 113, 120), (127, 216, 143), (229, 192, 123), (97, 175, 239)]
_COLOURS += [(198, 120, 221), (86, 182, 194), INK]
THEME = TerminalTheme(PAPER, INK, _COLOURS, [(110, 118, 129), *_COLOURS[1:]])


def printed(folder: Path, *words: str, stderr: str = os.devnull) -> str:
    """Return the text that a command prints on a terminal in a folder, with its colours."""
    size = {"COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    command = ["script", "-qc", f"{shlex.join(words)} 2>{stderr}", os.devnull]
    how = {"env": os.environ | {"TERM": "xterm-256color"} | size, "stdin": subprocess.DEVNULL}
    ran = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, **how)
    return ran.stdout.decode().replace("\r\n", "\n")


def study(clone: Path, *words: str) -> str:
    """Return the text that a command of `study` prints in a clone."""
    return printed(clone, sys.executable, "-m", "common", *words)


def shown(command: str, text: str, lines: int = LINES) -> list[Text]:
    """Return a command and the first lines of its output as a terminal shows them."""
    whole = list(Text.from_ansi(text.strip()).split(allow_blank=True))
    more = [Text("…")] if len(whole) > lines else []
    return [Text(f"$ {command}", style="bold"), *whole[:lines], *more, Text()]


def drawing(lines: Iterable[Text], name: str) -> str:
    """Return the SVG of a terminal with these lines; no two of a file have one name."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        for line in lines:
            console.print(line)
    return console.export_svg(title="", theme=THEME, unique_id=name)


def main() -> None:
    """Take the steps, and draw each."""
    steps: dict[str, list[Text]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        clone = Path(temporary, ADDRESS.rpartition("/")[2])
        cloned = ("git", "-c", f"url.{ROOT}.insteadOf={ADDRESS}", "clone", ADDRESS)
        steps["clone"] = shown(
            f"git clone {ADDRESS} && cd {clone.name}", printed(clone.parent, *cloned, stderr="&1")
        )
        steps["new"] = shown(
            "nox -s new -- alice rotate_half", study(clone, "new", "alice", "rotate_half")
        )
        kernel = clone / "contributors" / "alice" / "rotate_half.py"
        right = kernel.read_text()
        assert RIGHT in right, "the template has changed"
        kernel.write_text(right.replace(RIGHT, WRONG))
        steps["wrong"] = shown("nox -s check -- alice", study(clone, "check", "alice"))
        kernel.write_text(right)
        steps["check"] = shown("nox -s check -- alice", study(clone, "check", "alice"))
        board = study(clone, "bench", "--only", "alice", "--device", "cpu")
        board += study(clone, "leaderboard", "--only", "alice")
        steps["board"] = shown("nox -s bench leaderboard -- --only alice", board)
        hint = study(clone, "check", "alice", "--hint")
        steps["hint"] = shown("nox -s check -- alice --hint", hint)
        study(clone, "bench", "--op", "rotate_half", "--device", "cpu")
        study(clone, "leaderboard", "--op", "rotate_half")
        pictures.draw(clone / "site" / "index.html", PAGE, FOLDER)
    for name, lines in steps.items():
        (FOLDER / f"{name}.svg").write_text(drawing(lines, name))


if __name__ == "__main__":
    main()
