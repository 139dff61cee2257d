"""A newcomer's folder, copied from `contributors/_template`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from common.solutions import CONTRIBUTORS, PEERS, ROOT, Fault, everyone, select

HANDLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def write(handle: str, op: str) -> Path:
    """Write `contributors/<handle>/<op>.py`, and a README where none is; nothing is overwritten."""
    select(everyone(), op)
    if not HANDLE.fullmatch(handle):
        raise Fault(f"{handle!r} is no handle: letters, digits, - and _ make one")
    if (PEERS / handle).exists():
        raise Fault(f"{handle} is the name of a peer: choose another")
    template, folder = CONTRIBUTORS / "_template", CONTRIBUTORS / handle
    if not (template / f"{op}.py").exists():
        raise Fault(f"there is no template for {op}: start from another contributor's {op}.py")
    target, readme = folder / f"{op}.py", folder / "README.md"
    if target.exists():
        raise Fault(f"{target.relative_to(ROOT)} is there already and was left as it is")
    folder.mkdir(exist_ok=True)
    shutil.copyfile(template / f"{op}.py", target)
    if not readme.exists():
        text = (template / "README.md").read_text()
        readme.write_text(text.replace("{handle}", handle).replace("{op}", op))
    return target
