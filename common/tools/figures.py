"""Figures of a compiled kernel, read from its binary or its assembly."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import triton
from elftools.elf.elffile import ELFFile

TENSOR = r"HMMA|IMMA|DMMA|QMMA|OMMA|[HIQ]GMMA|UT[A-Z]*MMA|v_s?mfm?ac?_"
GLOBAL = (
    r"\b(?:LDG|STG|LDGSTS|RED|ATOMG|UTMALDG|UTMASTG|UBLKCP)\b"
    r"|\b(?:global|buffer|flat)_(?:load|store|atomic)"
)
WIDE = r"\.128\b|UTMALDG|UTMASTG|UBLKCP|_dwordx4|_b128"
"""Accesses of 16 bytes per lane, and accesses by the tensor memory accelerator."""


BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
BYTES = 16
"""The size of an instruction on every GPU since Volta."""
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.+?)(?:\s+[&?][^\s;]+)*\s*;", re.MULTILINE)
"""Matches an instruction's address, and the instruction without the annotations of its waits and
scheduling that CUDA 12.8's disassembler, which is part of Triton 3.6, adds for `sm_120`."""


@dataclass(frozen=True)
class Processor:
    """The limits and the register allocation of one streaming multiprocessor or compute unit.

    CUDA's: programming guide, table "Technical Specifications per Compute Capability". AMD's: CDNA3
    ISA, and LLVM's "User Guide for AMDGPU Backend", for which a compute unit is four SIMD units of
    512 vector registers and eight waves each.
    """

    warps: int
    blocks: int
    registers: int
    """The number of 32-bit registers, over all lanes."""
    shared: int
    lanes: int = 32
    step: int = 8
    """Registers of a lane are allocated in multiples of this number."""
    reserved: int = 1024
    """Bytes of shared memory that are reserved per block, in addition to its own."""


PROCESSORS = {
    "sm_80": Processor(64, 32, 1 << 16, 164 << 10),
    "sm_90": Processor(64, 32, 1 << 16, 228 << 10),
    "sm_100": Processor(64, 32, 1 << 16, 228 << 10),
    "sm_120": Processor(48, 24, 1 << 16, 100 << 10),
    "gfx942": Processor(32, 16, 4 * 512 * 64, 64 << 10, lanes=64, reserved=0),
}


def figures(kernels: Sequence[Mapping[str, str]], target: str) -> list[dict[str, float | None]]:
    """Return the figures of each kernel.

    - `registers` of a lane
    - `local`, its bytes of local memory: spilled registers, and arrays such as the one by which
      `cos` reduces large angles
    - `shared` bytes and `warps` of a block
    - `instructions`
    - `wide`, the share of global accesses that are 128 bits wide; None without an access
    - `tensor`, the number of tensor-core instructions
    - `occupancy`, the share of a processor's warps that fit at once

    Args:
        kernels: The files of each kernel in Triton's cache, by suffix: `json`, `ptx` and `cubin`,
            or `amdgcn`.
        target: The target of all kernels.
    """
    if not kernels:
        return []
    if "cubin" in kernels[0]:
        listings = instructions([Path(files["cubin"]) for files in kernels], target)
    else:  # without labels and padding
        codes = (assembly(files).partition(".section")[0] for files in kernels)
        listings = [re.findall(r"^\t([a-z]\w+.*)$", code, re.MULTILINE) for code in codes]
    pairs = zip(kernels, listings, strict=True)
    return [_figures(files, listing, target) for files, listing in pairs]


def _figures(
    files: Mapping[str, str], instructions: Sequence[str], target: str
) -> dict[str, float | None]:
    """Return the figures of the kernel with these instructions; see `figures`."""
    registers, local = _usage(files)
    metadata = json.loads(Path(files["json"]).read_text())
    shared, warps = metadata["shared"], metadata["num_warps"]
    accesses = _matching(GLOBAL, instructions)
    wide = len(_matching(WIDE, accesses)) / len(accesses) if accesses else None
    return {
        "registers": registers,
        "local": local,
        "shared": shared,
        "warps": warps,
        "instructions": len(instructions),
        "wide": wide,
        "tensor": len(_matching(TENSOR, instructions)),
        "occupancy": occupancy(PROCESSORS[target], registers, shared, warps),
    }


def _usage(files: Mapping[str, str]) -> tuple[int, int]:
    """Return the registers of a lane, and its bytes of local memory."""
    if "amdgcn" in files:
        names = ("vgpr_count", "private_segment_fixed_size")
        text = assembly(files)
        registers, local = (re.findall(rf"\.{name}:\s*(\d+)", text)[-1] for name in names)
        return int(registers), int(local)
    text = run("cuobjdump", "-res-usage", files["cubin"])
    numbers = {name: int(n) for name, n in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    return numbers["REG"], numbers["STACK"] + numbers["LOCAL"]


def _matching(pattern: str, lines: Iterable[str]) -> list[str]:
    return [line for line in lines if re.search(pattern, line)]


def assembly(files: Mapping[str, str]) -> str:
    """Return a kernel's full assembly, with labels in place of addresses."""
    if "amdgcn" in files:
        return Path(files["amdgcn"]).read_text()
    return run("nvdisasm", "-c", files["cubin"])


def occupancy(processor: Processor, registers: int, shared: int, warps: int) -> float:
    """Return the share of a processor's warps that concurrent blocks use.

    Args:
        processor: The processor.
        registers: Registers of a lane.
        shared: Bytes of shared memory of a block.
        warps: Warps of a block.
    """
    per_warp = -(-max(registers, 1) // processor.step) * processor.step * processor.lanes
    blocks = min(
        processor.blocks,
        processor.warps // warps,
        processor.registers // per_warp // warps,
        processor.shared // max(shared + processor.reserved, 1),
    )
    return blocks * warps / processor.warps


# --- the disassembler -----------------------------------------------------------------------------


def instructions(cubins: Sequence[Path], target: str) -> list[list[str]]:
    """Return the instructions of each kernel, without labels, directives and padding.

    The disassembler takes 0.4 s to start and a few milliseconds for a kernel, so the code of all
    kernels is written to one file.

    Args:
        cubins: The binaries, one kernel each.
        target: Their target, such as `sm_90`.

    Raises:
        subprocess.CalledProcessError: The tool refuses the code.
    """
    codes = [_code(cubin) for cubin in cubins]
    number = int(target.removeprefix("sm_"))
    architecture = f"SM{number}{'a' if number >= 90 else ''}"  # as Triton compiles for it
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(codes))
        file.flush()
        text = run("nvdisasm", "-b", architecture, file.name)
    lines = dict(INSTRUCTION.findall(text))
    numbered = {int(address, 16): line for address, line in lines.items() if line != "NOP"}
    ends = list(itertools.accumulate(len(code) for code in codes))
    return [
        [numbered[at] for at in range(start, end, BYTES) if at in numbered]
        for start, end in itertools.pairwise([0, *ends])
    ]


def _code(cubin: Path) -> bytes:
    """Return the machine code of the kernel in a binary."""
    with cubin.open("rb") as file:
        sections = ELFFile(file).iter_sections()
        return b"".join(section.data() for section in sections if section.name.startswith(".text."))


def run(tool: str, *arguments: str) -> str:
    """Return the output of a CUDA tool of Triton's wheel.

    Raises:
        subprocess.CalledProcessError: The tool refuses the file.
    """
    completed = subprocess.run([BIN / tool, *arguments], capture_output=True, text=True, check=True)
    return completed.stdout
