"""`study new`: write a contributor's first file of an op.

The file is a copy from `contributors/_template`, or made from the op's reference.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from common import interfaces, paths
from common.commands import options as shared
from common.commands.reference import reference_of
from common.errors import UserError
from common.folders import NO_HANDLE, is_handle
from common.solutions import everyone, select


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add HANDLE and OP by position."""
    parser.add_argument("handle", nargs="?", metavar="HANDLE")
    parser.add_argument("of", nargs="?", metavar="OP")


def run(options: argparse.Namespace) -> int:
    """Write contributors/HANDLE/OP.py, a naive solution that passes."""
    handle = shared.one_of(options.handle, options.only, "HANDLE")
    op = shared.one_of(options.of, options.op, "OP")
    path = write(handle, op).relative_to(paths.ROOT)
    print(f"wrote {path}; next: nox -s check -- {handle} --op {op}")
    return 0


def write(handle: str, op: str) -> Path:
    """Copy the template to `contributors/<handle>/<op>.py`, with a README if none is there.

    For an op without a template, the file is the op's reference.

    Raises:
        UserError: The handle is not valid or is a peer's name, or the file exists.
    """
    _check_handle(handle, op)
    template, folder = paths.CONTRIBUTORS / "_template", paths.CONTRIBUTORS / handle
    path, copied = folder / f"{op}.py", template / f"{op}.py"
    if path.exists():
        raise UserError(f"{path.relative_to(paths.ROOT)} is there already and was left as it is")
    text = copied.read_text() if copied.exists() else from_reference(op)
    folder.mkdir(exist_ok=True)
    path.write_text(text)
    if not (folder / "README.md").exists():
        readme = (template / "README.md").read_text()
        (folder / "README.md").write_text(readme.replace("{handle}", handle).replace("{op}", op))
    return path


def _check_handle(handle: str, op: str) -> None:
    if op in interfaces.names():
        interfaces.read(op)  # raises the error of an invalid op
    select(everyone(installed=False), op)
    if not is_handle(handle):
        raise UserError(f"{handle!r} is no handle: {NO_HANDLE}")
    if (paths.PEERS / handle).exists():
        raise UserError(f"{handle} is the name of a peer: choose another")


# --- the naive solution of an op ------------------------------------------------------------------


def from_reference(op: str) -> str:
    """Return a solution made from the op's reference and the code that it needs.

    Raises:
        UserError: The op's file has no function `reference`.
    """
    # the solution has the op's name, so that torch's function of this name is imported as another
    op_name = re.compile(rf"(?<![\w.]){op}\b")
    imports = [(paths.CONTRIBUTORS / "_template" / "naive.txt").read_text().replace("{op}", op)]
    others = [""]
    for text in reference_of(op):
        if text.startswith(("import ", "from ")):
            imports.append(op_name.sub(f"{op} as torch_{op}", text) + "\n")
        else:
            others.append(op_name.sub(f"torch_{op}", text) + "\n")
    return ("".join(imports) + "\n\n".join(others)).replace("def reference(", f"def {op}(")
