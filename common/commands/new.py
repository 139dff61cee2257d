"""`study new`: a contributor's first file, copied from `contributors/_template`."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from common import paths
from common.commands import options as shared
from common.errors import UserError
from common.solutions import NO_HANDLE, everyone, is_handle, select


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add HANDLE and OP by position, and `--tuned`."""
    parser.add_argument("handle", nargs="?", metavar="HANDLE")
    parser.add_argument("new_op", nargs="?", metavar="OP")
    parser.add_argument(
        "--tuned", action="store_true", help="with configs.py, which reads what tune found"
    )


def run(options: argparse.Namespace) -> int:
    """Write contributors/HANDLE/OP.py from the template: a naive kernel that passes."""
    handle = shared.one_of(options.handle, options.only, "HANDLE")
    written = write(handle, shared.one_of(options.new_op, options.op, "OP"), options.tuned)
    names = " and ".join(str(path.relative_to(paths.ROOT)) for path in written)
    print(f"wrote {names}; next: nox -s check -- {handle}")
    return 0


def write(handle: str, op: str, tuned: bool = False) -> list[Path]:
    """Copy the template's files to `contributors/<handle>/`; existing files stay as they are.

    A README is written if there is none.

    Args:
        handle: The folder's name.
        op: The op whose file is copied.
        tuned: Copy `configs.py` too, which reads tuned configurations, even if the op's file is
            there already.

    Returns:
        The files that were written, without the README.

    Raises:
        UserError: The handle is not valid or is a peer's name, there is no template for the op, or
            every file is there already.
    """
    _check_handle(handle, op)
    template, folder = paths.CONTRIBUTORS / "_template", paths.CONTRIBUTORS / handle
    wanted = [folder / f"{op}.py"] + [folder / "configs.py"] * tuned
    missing = [path for path in wanted if not path.exists()]
    if wanted[0] in missing and not (template / f"{op}.py").exists():
        raise UserError(f"there is no template for {op}: start from another contributor's {op}.py")
    if not missing:
        last = wanted[-1].relative_to(paths.ROOT)
        raise UserError(f"{last} is there already and was left as it is")
    folder.mkdir(exist_ok=True)
    for path in missing:
        shutil.copyfile(template / path.name, path)
    _write_readme(folder, op)
    return missing


def _check_handle(handle: str, op: str) -> None:
    select(everyone(), op)
    if not is_handle(handle):
        raise UserError(f"{handle!r} is no handle: {NO_HANDLE}")
    if (paths.PEERS / handle).exists():
        raise UserError(f"{handle} is the name of a peer: choose another")
    for folder in paths.CONTRIBUTORS.iterdir():
        if folder.name.casefold() == handle.casefold() and folder.name != handle:
            raise UserError(f"{handle} differs from {folder.name} in case alone: choose another")


def _write_readme(folder: Path, op: str) -> None:
    readme = folder / "README.md"
    if not readme.exists():
        text = (paths.CONTRIBUTORS / "_template" / "README.md").read_text()
        readme.write_text(text.replace("{handle}", folder.name).replace("{op}", op))
