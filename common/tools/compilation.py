"""Compile the solutions' kernels of the board's cases for GPUs that are not present."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from elftools.elf.elffile import ELFFile

from common import wire
from common.disk_cache import trim_caches
from common.errors import ServerEnded
from common.grading.fork_server import ForkServer
from common.grading.worker import DEADLINE, Worker
from common.processes import cores
from common.solutions import Solution
from common.spec import Case
from common.wire import Reply

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")


@dataclass(frozen=True)
class Compiled:
    """One kernel of a case, compiled for a target, or the reason why the call ended."""

    solution: str
    op: str
    case: str
    target: str
    sources: str
    """Digest of the solution with its helpers."""
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


def compiled(
    todo: Mapping[Solution, Sequence[Case]], targets: Sequence[str], quiet: bool = True
) -> Generator[list[Compiled]]:
    """Yield the kernels of each solution and target in order; they compile concurrently.

    The end of the generator ends its processes. Triton's own cache keeps the kernels.

    Args:
        todo: The cases of each solution.
        targets: The targets to compile all solutions for.
        quiet: Whether to drop the output of the processes.
    """
    pool = ThreadPoolExecutor(cores())
    servers = {target: ForkServer("cpu", quiet, target=target, full=True) for target in targets}

    def of_target(solution: Solution, target: str) -> list[Compiled]:
        return _compiled(solution, todo[solution], target, servers[target])

    try:
        parts = itertools.product(todo, targets)
        yield from pool.map(lambda part: of_target(*part), parts)
    finally:
        for server in servers.values():
            server.interrupt()
        pool.shutdown(cancel_futures=True)
        for server in servers.values():
            server.close()
        trim_caches()


def _compiled(
    solution: Solution, cases: Sequence[Case], target: str, server: ForkServer
) -> list[Compiled]:
    """Return the kernels of the cases, and the calls that ended early.

    The cases run one after the other, so that no two compile the same kernel; the figures of each
    kernel are read once.
    """
    figures_of: dict[str, dict[str, int]] = {}
    same: dict[str, Any] = {
        "solution": solution.name,
        "op": solution.op,
        "sources": solution.digest,
    }
    found: list[Compiled] = []
    for case in cases:
        reply = _ask(server, solution, case.name)
        made: list[dict[str, Any]] = []
        for kernel in reply.get("kernels", []):
            of = {key: kernel[key] for key in ("direction", "files")}
            if kernel["hash"] not in figures_of:
                figures_of[kernel["hash"]] = figures(kernel["files"])
            found_figures = figures_of[kernel["hash"]]
            made.append({**of, "kernel": kernel["name"], "figures": found_figures})
        if ended := reply if reply.get("verdict") else reply.get("stopped"):
            made.append({"verdict": ended["verdict"], "reason": ended["reason"]})
        found += [Compiled(**same, case=case.name, target=target, **fields) for fields in made]
    return found


def _ask(server: ForkServer, solution: Solution, case: str) -> Reply:
    """Return the kernels of one case, and the verdict with which its call ended, if any."""
    worker = Worker(server, solution, DEADLINE["cuda"])
    try:
        return worker.ask(wire.AtFullShape(case=case))
    except ServerEnded as error:
        return {"verdict": "CRASHED", "reason": str(error)}
    finally:
        worker.close()


# --- a compiled kernel ----------------------------------------------------------------------------

BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
BYTES = 16
"""The size of an instruction on every NVIDIA GPU since Volta."""
OPCODE, NOP = 0xFFF, 0x918
"""The bits of an instruction that state its opcode, and the opcode that pads the code."""


def figures(files: Mapping[str, str]) -> dict[str, int]:
    """Return the figures of a kernel.

    - `registers` of a lane
    - `local`, its bytes of local memory: spilled registers, and arrays such as the one by which
      `cos` reduces large angles
    - `shared` bytes and `warps` of a block
    - `instructions`, without padding

    Args:
        files: The kernel's files in Triton's cache, by suffix: `json`, and `cubin` or `amdgcn`.
    """
    read = _of_amdgcn if "amdgcn" in files else _of_cubin
    registers, local, instructions = read(files)
    metadata = json.loads(Path(files["json"]).read_text())
    return {
        "registers": registers, "local": local, "shared": metadata["shared"],
        "warps": metadata["num_warps"], "instructions": instructions,
    }  # fmt: skip


def _of_amdgcn(files: Mapping[str, str]) -> tuple[int, int, int]:
    text = assembly(files)
    names = ("vgpr_count", "private_segment_fixed_size")
    registers, local = (int(re.findall(rf"\.{name}:\s*(\d+)", text)[-1]) for name in names)
    code = text.partition(".section")[0]
    return registers, local, len(re.findall(r"^\t[a-z]\w", code, re.MULTILINE))


def _of_cubin(files: Mapping[str, str]) -> tuple[int, int, int]:
    usage = _run("cuobjdump", "-res-usage", files["cubin"])
    numbers = {name: int(n) for name, n in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    with Path(files["cubin"]).open("rb") as file:
        sections = ELFFile(file).iter_sections()
        code = b"".join(part.data() for part in sections if part.name.startswith(".text."))
    words = (int.from_bytes(code[at : at + 8], "little") for at in range(0, len(code), BYTES))
    instructions = sum(word & OPCODE != NOP for word in words)
    return numbers["REG"], numbers["STACK"] + numbers["LOCAL"], instructions


def assembly(files: Mapping[str, str]) -> str:
    """Return a kernel's full assembly, with labels in place of addresses."""
    if "amdgcn" in files:
        return Path(files["amdgcn"]).read_text()
    return _run("nvdisasm", "-c", files["cubin"])


def _run(tool: str, *arguments: str) -> str:
    """Return the output of a CUDA tool of Triton's wheel."""
    completed = subprocess.run([BIN / tool, *arguments], capture_output=True, text=True, check=True)
    return completed.stdout
