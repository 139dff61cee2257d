"""The pictures of docs/steps.md, drawn anew: `python -m tests.generators.first_steps`.

A clone of the last commit, in which alice takes her first steps without a GPU. Look at each picture
before it is committed.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from common.paths import ROOT
from tests.generators import pictures
from tests.generators.pictures import Picture

FOLDER = ROOT / "docs" / "steps"
COLUMNS, LINES = 100, 45
"""The size of a picture at most; further lines are left out."""
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


def printed(clone: Path, *command: str) -> str:
    """Return the text that a command of `study` prints on a terminal, with its colours."""
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(
        [sys.executable, "-m", "common", *command],
        cwd=clone, stdout=terminal, stderr=subprocess.DEVNULL, env=environment,
    ):  # fmt: skip
        os.close(terminal)
        return _everything(ours).decode().replace("\r\n", "\n")


def _everything(terminal: int) -> bytes:
    received = b""
    while True:
        try:
            received += os.read(terminal, 1 << 16)
        except OSError:  # the command has ended
            os.close(terminal)
            return received


def draw(name: str, command: str, text: str, lines: int = LINES) -> None:
    """Draw a command and the first lines of its output as a terminal shows them."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(f"$ {command}", style="bold", markup=False, highlight=False)
        whole = Text.from_ansi(text.strip()).split(allow_blank=True)
        for line in whole[:lines]:
            console.print(line)
        console.print("…" if len(whole) > lines else "")
    console.save_svg(str(FOLDER / f"{name}.svg"), title="", theme=THEME, unique_id=name)


def main() -> None:
    """Take the steps, and draw each."""
    with tempfile.TemporaryDirectory() as temporary:
        clone = Path(temporary, "study")
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        draw(
            "new", "nox -s new -- alice rotate_half", printed(clone, "new", "alice", "rotate_half")
        )
        kernel = clone / "contributors" / "alice" / "rotate_half.py"
        right = kernel.read_text()
        assert RIGHT in right, "the template has changed"
        kernel.write_text(right.replace(RIGHT, WRONG))
        draw("wrong", "nox -s check -- alice", printed(clone, "check", "alice"), lines=14)
        kernel.write_text(right)
        draw("check", "nox -s check -- alice", printed(clone, "check", "alice"))
        printed(clone, "bench", "--op", "rotate_half", "--device", "cpu")
        boards = printed(clone, "leaderboard", "--op", "rotate_half")
        modelled = boards[boards.index("CPU, Triton's interpreter") :]
        draw("board", "nox -s bench leaderboard -- --op rotate_half", modelled)
        pictures.draw(clone / "site" / "index.html", PAGE, FOLDER)


if __name__ == "__main__":
    main()
