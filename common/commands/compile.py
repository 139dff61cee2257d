"""`study compile`: compile the kernels of the board's cases, also for GPUs of other machines."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import re
import subprocess
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from common.board.table import Table
from common.commands import options as shared
from common.commands.progress import Progress
from common.errors import ServerEnded, UserError
from common.processes import cores
from common.solutions import Solution

if TYPE_CHECKING:
    from common.grading.fork_server import ForkServer
    from common.spec import Case

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
STAGES = ("ttir", "ttgir", "llir", "ptx", "sass", "amdgcn")
FIGURES = ("registers", "local", "shared", "warps")


@dataclass(frozen=True)
class Compiled:
    """One kernel of a case, compiled for a target, or the reason why the call ended."""

    solution: str
    case: str
    target: str
    kernel: str = ""
    """Empty where the call ended before its last kernel."""
    direction: str = ""
    """The direction that launched the kernel first."""
    figures: Mapping[str, int] = field(default_factory=dict)
    """See the function `figures`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The kernel's files in Triton's cache, by suffix."""
    verdict: str = "PASSED"
    reason: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the targets, the case and the output."""
    add = parser.add_argument
    add("--target", action="append", choices=TARGETS, help="may be repeated; default: every target")
    add("--case", help="only this case; default: every case of the board")
    add("--show", nargs=2, metavar=("STAGE", "KERNEL"), help=f"print {', '.join(STAGES)}")
    add("--verbose", action="store_true", help="show the solutions' own output")


def run(options: argparse.Namespace) -> int:
    """Compile the board's kernels for several GPUs; print registers, shared memory and the like."""
    targets = options.target or TARGETS
    if options.show and options.show[0] not in STAGES:
        raise UserError(f"no stage {options.show[0]}: the stages are {', '.join(STAGES)}")
    todo = _todo(shared.contributors(options), options.case)
    found, parts = list[Compiled](), compiled(todo, targets, quiet=not options.verbose)
    with closing(parts), Progress("solutions and targets", len(todo) * len(targets)) as steps:
        for kernels in parts:
            found += kernels
            steps.done(f"{kernels[0].solution} {kernels[0].target}" if kernels else "no kernel")
    if options.show:
        stage, kernel = options.show
        print(shown(stage, kernel, found))
    else:
        from common.board import terminal  # rich, which --show does not need

        terminal.show_tables([table(found)], terminal.console())
    return 0


def _todo(chosen: Sequence[Solution], only: str | None) -> Mapping[Solution, Sequence[Case]]:
    """Return each solution with the board's cases of its op, at their true shapes."""
    from common import ops

    of_op = {op.name: [case for case in op.cases("board") if only in (None, case.name)]
             for op in ops.valid(solution.op for solution in chosen)}  # fmt: skip
    if todo := {solution: of_op[solution.op] for solution in chosen if of_op.get(solution.op)}:
        return todo
    raise UserError(f"no case of the board is called {only}")


# --- compilation ----------------------------------------------------------------------------------


def compiled(
    todo: Mapping[Solution, Sequence[Case]], targets: Sequence[str], quiet: bool = True
) -> Generator[list[Compiled]]:
    """Yield the kernels of each solution and target in order; they compile concurrently.

    The end of the generator ends its processes, whose output is dropped if `quiet`. Triton's own
    cache keeps the kernels.
    """
    from common.disk_cache import trim_caches
    from common.grading.fork_server import ForkServer

    with contextlib.ExitStack() as stack:
        stack.callback(trim_caches)
        server_of = {
            target: stack.enter_context(closing(ForkServer("cpu", quiet, target=target, full=True)))
            for target in targets
        }
        pool = stack.enter_context(ThreadPoolExecutor(cores()))
        for server in server_of.values():
            stack.callback(server.interrupt)  # what has not begun ends at once
        calls = itertools.product(todo.items(), server_of.items())
        yield from pool.map(lambda call: list(_of_target(*call[0], *call[1])), calls)


def _of_target(
    solution: Solution, cases: Sequence[Case], target: str, server: ForkServer
) -> Iterable[Compiled]:
    """Yield the kernels of the cases, and the calls that ended early.

    The cases run one after the other, so that no two compile the same kernel; the figures of each
    kernel are read once.
    """
    from common import wire
    from common.grading.worker import DEADLINE, Worker

    figures_of: dict[str, dict[str, int]] = {}
    for case in cases:
        call = Compiled(solution.name, case.name, target)
        with closing(Worker(server, solution, DEADLINE["cuda"])) as worker:
            try:
                reply = worker.ask(wire.AtFullShape(case=case.params))
            except ServerEnded as error:
                reply = {"verdict": "CRASHED", "reason": str(error)}
        for key, kernel in reply.get("kernels", {}).items():
            files = kernel["files"]
            figures_of[key] = figures_of.get(key) or figures(files)
            own = {"kernel": kernel["name"], "direction": kernel["direction"], "files": files}
            yield dataclasses.replace(call, figures=figures_of[key], **own)
        if reply.get("verdict"):
            yield dataclasses.replace(call, verdict=reply["verdict"], reason=reply["reason"])


# --- a compiled kernel ----------------------------------------------------------------------------


def figures(files: Mapping[str, str]) -> dict[str, int]:
    """Return the figures of a kernel, given its files in Triton's cache by suffix.

    - `registers` of a lane
    - `local`, its bytes of local memory: spilled registers, and arrays such as the one by which
      `cos` reduces large angles
    - `shared` bytes and `warps` of a block
    """
    metadata = json.loads(Path(files["json"]).read_text())
    if "amdgcn" in files:
        text = assembly(files)
        registers, local = (int(re.findall(rf"\.{name}:\s*(\d+)", text)[-1])
                            for name in ("vgpr_count", "private_segment_fixed_size"))  # fmt: skip
    else:
        usage = _run("cuobjdump", "-res-usage", files["cubin"])
        numbers = {name: int(n) for name, n in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
        registers, local = numbers["REG"], numbers["STACK"] + numbers["LOCAL"]
    found = registers, local, metadata["shared"], metadata["num_warps"]
    return dict(zip(FIGURES, found, strict=True))


def assembly(files: Mapping[str, str]) -> str:
    """Return a kernel's full assembly, with labels in place of addresses."""
    if "amdgcn" in files:
        return Path(files["amdgcn"]).read_text()
    return _run("nvdisasm", "-c", files["cubin"])


def _run(tool: str, *arguments: str) -> str:
    """Return the output of one of the CUDA tools that Triton uses."""
    from triton import knobs

    path = getattr(knobs.nvidia, tool).path
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


# --- the table ------------------------------------------------------------------------------------


def table(found: Iterable[Compiled]) -> Table:
    """Return a row for each kernel and direction, and for each reason why calls ended.

    A cell is the range over all cases and targets. The calls that ended are the first, then the
    kernels with the most local memory, which holds spilled registers.
    """
    groups: dict[tuple[str, str], list[Compiled]] = defaultdict(list)
    for line in sorted(found, key=lambda line: -line.figures.get("local", math.inf)):
        name = f"{line.solution}: {line.kernel or f'{line.verdict}: {line.reason}'}"
        groups[name, line.direction].append(line)
    rows = [
        (name, direction, str(len({line.case for line in lines})))
        + tuple(_range(lines, figure) for figure in FIGURES)
        for (name, direction), lines in groups.items()
    ]
    return Table("", ("kernel", "first in", "cases", *FIGURES), tuple(rows))


def _range(lines: Iterable[Compiled], figure: str) -> str:
    """Return the least and the greatest value of a figure; empty for a call that ended."""
    values = sorted(line.figures[figure] for line in lines if line.figures)
    return "–".join(dict.fromkeys(f"{value:,}" for value in (*values[:1], *values[-1:])))


# --- stages ---------------------------------------------------------------------------------------


def shown(stage: str, kernel: str, found: Iterable[Compiled]) -> str:
    """Return a stage of the first kernel that has it, by a part of the kernel's name.

    Raises:
        UserError: There is no such kernel.
    """
    suffix = "cubin" if stage == "sass" else stage
    for line in found:
        if kernel in line.kernel and suffix in line.files:
            return assembly(line.files) if stage == "sass" else Path(line.files[stage]).read_text()
    raise UserError(f"no kernel {kernel} with {stage} is compiled here")
