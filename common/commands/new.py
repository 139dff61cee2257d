"""`study new`: write a contributor's first file of an op, or the file of a new op.

The contributor's file is a copy from `contributors/_template`, or made from the op's reference.
"""

from __future__ import annotations

import argparse
import ast
import keyword
import re
from collections.abc import Iterator
from pathlib import Path

from common import interfaces, paths
from common.commands import options as shared
from common.errors import UserError
from common.folders import NO_HANDLE, is_handle
from common.solutions import everyone, select


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add HANDLE and OP by position, `--tuned` and `--new-op`."""
    parser.add_argument("handle", nargs="?", metavar="HANDLE")
    parser.add_argument("of", nargs="?", metavar="OP")
    parser.add_argument("--new-op", metavar="OP", help="write the skeleton of a new op")
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
    """Copy the template's files to `contributors/<handle>/`, without replacing existing files.

    For an op without a template, the file is the op's reference. A missing README is written too.

    Args:
        handle: The folder's name.
        op: The op.
        tuned: Copy `configs.py` too, which reads tuned configurations, even if the op's file
            exists.

    Returns:
        The written files, without the README.

    Raises:
        UserError: The handle is not valid or is a peer's name, the op has no template and its
            reference needs other code of `common`, or every file exists.
    """
    _check_handle(handle, op)
    template, folder = paths.CONTRIBUTORS / "_template", paths.CONTRIBUTORS / handle
    wanted = [f"{op}.py"] + ["configs.py"] * tuned
    if not (missing := [name for name in wanted if not (folder / name).exists()]):
        last = (folder / wanted[-1]).relative_to(paths.ROOT)
        raise UserError(f"{last} is there already and was left as it is")
    texts = {
        name: (template / name).read_text() if (template / name).exists() else from_reference(op)
        for name in missing
    }
    if not (folder / "README.md").exists():
        readme = (template / "README.md").read_text()
        texts["README.md"] = readme.replace("{handle}", handle).replace("{op}", op)
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in missing]


def _check_handle(handle: str, op: str) -> None:
    if op in interfaces.names():
        interfaces.read(op)  # raises the error of an invalid op
    select(everyone(installed=False), op)
    if not is_handle(handle):
        raise UserError(f"{handle!r} is no handle: {NO_HANDLE}")
    if (paths.PEERS / handle).exists():
        raise UserError(f"{handle} is the name of a peer: choose another")


# --- an op ----------------------------------------------------------------------------------------

NAIVE = '''"""Naive on purpose: plain torch, a kernel for each operation."""

# Your kernel goes here: contributors/_template/rotate_half.py shows its four parts, the kernel, the
# launcher, autograd and the function that the harness calls. Begin with forward, and call it in
# place of the lines of {op} below; a backward of its own follows.

'''


def write_op(op: str) -> Path:
    """Write the skeleton of a new op's file, and return its path.

    Raises:
        UserError: The name is not a valid function name, or the op exists.
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
    """Return a solution made from the op's reference and the statements that it needs.

    Raises:
        UserError: The reference calls other code of `common`, which no solution may import.
    """
    path = paths.OPS / f"{op}.py"
    source = path.read_text()
    by_name = {name: node for node in ast.parse(source).body for name in _bound(node)}
    needed, waiting = set[ast.stmt](), ["reference"]
    while waiting:
        node = by_name.get(waiting.pop())
        if node is None or node in needed:
            continue
        needed.add(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "common":
            raise UserError(
                f"there is no template for {op}, and its reference needs {node.module}: start from"
                f" another contributor's {op}.py"
            )
        waiting += [child.id for child in ast.walk(node) if isinstance(child, ast.Name)]
    if by_name.get("reference") not in needed:
        raise UserError(f"{interfaces.shown(path)}: has no function `reference`")
    # the solution has the op's name, so that torch's function of this name is imported as another
    op_name = re.compile(rf"(?<![\w.]){op}\b")
    imports, others = NAIVE.format(op=op), ""
    for node in sorted(needed, key=lambda node: node.lineno):
        segment = ast.get_source_segment(source, node) or ""
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += op_name.sub(f"{op} as torch_{op}", segment) + "\n"
        else:
            others += f"\n\n{op_name.sub(f'torch_{op}', segment)}\n"
    return (imports + others).replace("def reference(", f"def {op}(")


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a module's statement binds."""
    match node:
        case ast.Import() | ast.ImportFrom():
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        case ast.FunctionDef(name):
            yield name
        case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
            yield name
