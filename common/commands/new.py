"""A newcomer's folder, copied from `contributors/_template`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from common.errors import UserError
from common.paths import CONTRIBUTORS, PEERS, ROOT
from common.solutions import everyone, select

HANDLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def write(handle: str, op: str, tuned: bool = False) -> list[Path]:
    """Write `contributors/<handle>/<op>.py`, and a README where none is; nothing is overwritten.

    With `tuned`, also the helper that reads tuned configurations, be the op's file new or not.
    Returns what was written of these two.
    """
    select(everyone(), op)
    if not HANDLE.fullmatch(handle):
        raise UserError(f"{handle!r} is no handle: letters, digits, - and _ make one")
    if (PEERS / handle).exists():
        raise UserError(f"{handle} is the name of a peer: choose another")
    template, folder = CONTRIBUTORS / "_template", CONTRIBUTORS / handle
    target, readme = folder / f"{op}.py", folder / "README.md"
    wanted = [target, folder / "configs.py"] if tuned else [target]
    missing = [path for path in wanted if not path.exists()]
    if target in missing and not (template / target.name).exists():
        raise UserError(f"there is no template for {op}: start from another contributor's {op}.py")
    if not missing:
        last = wanted[-1].relative_to(ROOT)
        raise UserError(f"{last} is there already and was left as it is")
    folder.mkdir(exist_ok=True)
    for path in missing:
        shutil.copyfile(template / path.name, path)
    if not readme.exists():
        text = (template / "README.md").read_text()
        readme.write_text(text.replace("{handle}", handle).replace("{op}", op))
    return missing
