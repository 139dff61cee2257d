"""`study new`: a contributor's first file of an op, or an op's own file.

The first file is copied from `contributors/_template`, or made from the op's reference.
"""

from __future__ import annotations

import argparse
import ast
import keyword
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from common import interfaces, paths
from common.commands import options as shared
from common.errors import UserError
from common.solutions import NO_HANDLE, everyone, is_handle, select


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add HANDLE and OP by position, `--tuned` and `--new-op`."""
    parser.add_argument("handle", nargs="?", metavar="HANDLE")
    parser.add_argument("of", nargs="?", metavar="OP")
    parser.add_argument(
        "--new-op", metavar="OP", help="write the skeleton of an op that there is not yet"
    )
    parser.add_argument(
        "--tuned", action="store_true", help="with configs.py, which reads what tune found"
    )


def run(options: argparse.Namespace) -> int:
    """Write contributors/HANDLE/OP.py, a naive solution that passes, or the skeleton of an op."""
    if options.new_op:
        if options.handle or options.tuned:
            raise UserError("--new-op stands alone: it writes an op, nobody's solution")
        path = write_op(options.new_op).relative_to(paths.ROOT)
        print(f"wrote {path}; next: docs/ops.md, then nox -s new -- HANDLE {options.new_op}")
        return 0
    handle = shared.one_of(options.handle, options.only, "HANDLE")
    op = shared.one_of(options.of, options.op, "OP")
    written = write(handle, op, options.tuned)
    names = " and ".join(str(path.relative_to(paths.ROOT)) for path in written)
    print(f"wrote {names}; next: nox -s check -- {handle} --op {op}")
    return 0


def write(handle: str, op: str, tuned: bool = False) -> list[Path]:
    """Copy the template's files to `contributors/<handle>/`; existing files stay as they are.

    Of an op that has no template, the file is the op's reference. A README is written if there is
    none.

    Args:
        handle: The folder's name.
        op: The op whose file is copied.
        tuned: Copy `configs.py` too, which reads tuned configurations, even if the op's file is
            there already.

    Returns:
        The files that were written, without the README.

    Raises:
        UserError: The handle is not valid or is a peer's name, there is no template for the op and
            its reference does not stand alone, or every file is there already.
    """
    _check_handle(handle, op)
    template, folder = paths.CONTRIBUTORS / "_template", paths.CONTRIBUTORS / handle
    wanted = [folder / f"{op}.py"] + [folder / "configs.py"] * tuned
    missing = [path for path in wanted if not path.exists()]
    has = (template / f"{op}.py").exists()
    made = "" if has or wanted[0] not in missing else from_reference(op)
    if not missing:
        last = wanted[-1].relative_to(paths.ROOT)
        raise UserError(f"{last} is there already and was left as it is")
    folder.mkdir(exist_ok=True)
    for path in missing:
        if made and path == wanted[0]:
            path.write_text(made)
        else:
            shutil.copyfile(template / path.name, path)
    _write_readme(folder, op)
    return missing


def _check_handle(handle: str, op: str) -> None:
    if op in interfaces.names():
        interfaces.read(op)  # which says what is wrong with it
    select(everyone(installed=False), op)
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


# --- an op ----------------------------------------------------------------------------------------

NAIVE = '''"""Naive on purpose: plain torch, a kernel for each operation."""

# Your kernel goes here: contributors/_template/rotate_half.py shows its four parts, the kernel, the
# launcher, autograd and the function that the harness calls. Begin with forward, and call it in
# place of the lines of {op} below; a backward of its own follows.

'''


def write_op(op: str) -> Path:
    """Write the file of a new op, whose every line is there to be replaced, and return its path.

    Raises:
        UserError: The name is no function's, or the op is there already.
    """
    path = paths.OPS / f"{op}.py"
    if not op.isidentifier() or op != op.lower() or op.startswith("_") or keyword.iskeyword(op):
        raise UserError(f"{op!r} cannot be an op: give a function's name, such as swiglu")
    if path.exists():
        raise UserError(f"{path.relative_to(paths.ROOT)} is there already and was left as it is")
    text = (paths.OPS / "_skeleton.py").read_text()
    camel = "".join(part.capitalize() for part in op.split("_"))
    path.write_text(text.replace("skeleton", op).replace("Skeleton", camel))
    return path


def from_reference(op: str) -> str:
    """Return a solution that is the op's reference, with what it needs of its file.

    Raises:
        UserError: It calls other code of `common`, which no solution may import.
    """
    source = (paths.OPS / f"{op}.py").read_text()
    of = {name: node for node in ast.parse(source).body for name in _bound(node)}
    needed, waiting = set[ast.stmt](), ["reference"]
    while waiting:
        node = of.get(waiting.pop())
        if node is None or node in needed:
            continue
        needed.add(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "common":
            raise UserError(
                f"there is no template for {op}, and its reference needs {node.module}: start from"
                f" another contributor's {op}.py"
            )
        waiting += [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
    if of.get("reference") not in needed:
        raise UserError(f"{interfaces.shown(paths.OPS / f'{op}.py')}: has no function `reference`")
    # torch's function of the op's own name, which the solution takes, is called by another
    another, taken = f"torch_{op}", re.compile(rf"(?<![\w.]){op}\b")
    text = NAIVE.format(op=op)
    imports = [each for each in needed if isinstance(each, ast.Import | ast.ImportFrom)]
    for node in sorted(imports, key=lambda each: each.lineno):
        text += taken.sub(f"{op} as {another}", ast.get_source_segment(source, node) or "") + "\n"
    for node in sorted(needed.difference(imports), key=lambda each: each.lineno):
        text += f"\n\n{taken.sub(another, ast.get_source_segment(source, node) or '')}\n"
    return text.replace("def reference(", f"def {op}(")


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
