"""Figures of a compiled kernel, read from its binary or its assembly."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import triton
from elftools.elf.elffile import ELFFile

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
