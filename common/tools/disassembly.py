"""The instructions of NVIDIA's binaries, many binaries in one process of the disassembler."""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import triton
from elftools.elf.elffile import ELFFile

BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
BYTES = 16
"""Of an instruction, on every GPU since Volta."""
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.+?)(?:\s+[&?][^\s;]+)*\s*;", re.MULTILINE)
"""The address of an instruction, and the instruction without what CUDA 12.8's disassembler, which
Triton 3.6 brings, adds for `sm_120`: what it waits for, and how it is scheduled."""


def instructions(cubins: Sequence[Path], target: str) -> list[list[str]]:
    """Return the instructions of each kernel, without labels, directives and padding.

    The disassembler takes 0.4 s to start and a few milliseconds for a kernel, so the code of all
    kernels is laid into one file for it.

    Args:
        cubins: The binaries, one kernel each.
        target: Their target, such as `sm_90`.

    Raises:
        subprocess.CalledProcessError: The tool refuses the code.
    """
    codes = [_code(cubin) for cubin in cubins]
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(codes))
        file.flush()
        text = run("nvdisasm", "-b", _architecture(target), file.name)
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
        return b"".join(each.data() for each in sections if each.name.startswith(".text."))


def assembly(cubin: Path) -> str:
    """Return a kernel's whole assembly, with labels in place of addresses."""
    return run("nvdisasm", "-c", str(cubin))


def _architecture(target: str) -> str:
    """Return the disassembler's name of a target: Triton compiles for `sm_90a` and later ones."""
    number = int(target.removeprefix("sm_"))
    return f"SM{number}{'a' if number >= 90 else ''}"


def run(tool: str, *arguments: str) -> str:
    """Return the output of one of CUDA's tools, which Triton's wheel brings.

    Raises:
        subprocess.CalledProcessError: The tool refuses the file.
    """
    done = subprocess.run([BIN / tool, *arguments], capture_output=True, text=True, check=True)
    return done.stdout
