"""Many binaries go through one process of the disassembler: each is read as it is alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from common.sandbox.compiled.target import TARGETS
from common.tools import figures

NVIDIA = [name for name, target in TARGETS.items() if target.backend == "cuda"]


@triton.jit
def add(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) + 1)


@triton.jit
def sine(x, y, n, BLOCK: tl.constexpr):
    for at in range(0, n, BLOCK):
        offs = at + tl.arange(0, BLOCK)
        tl.store(y + offs, tl.sin(tl.load(x + offs, offs < n)), offs < n)


@triton.jit
def product(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tile = tl.load(x + at).to(tl.float16)
    tl.store(y + at, tl.dot(tile, tile))


def files(kernel, target, block, **scalars):
    """Return the files of a kernel, by ending."""
    signature = {"x": "*fp32", "y": "*fp32", **scalars, "BLOCK": "constexpr"}
    aligned = {(n,): [["tt.divisibility", 16]] for n in range(2)}
    source = ASTSource(kernel, signature, {"BLOCK": block}, aligned)
    gpu = TARGETS[target]
    made = triton.compile(source, GPUTarget(gpu.backend, gpu.arch, gpu.warp))
    return {path.rpartition(".")[2]: path for path in made.metadata_group.values()}


def kernels(target):
    return [
        files(add, target, 256), files(sine, target, 512, n="i32"), files(product, target, 64),
        files(add, target, 2048),
    ]  # fmt: skip


def names(lines):
    """Return the instructions without their operands: alone, a branch goes to a label."""
    return [re.sub(r"^@!?U?P\w+ ", "", line).split()[0] for line in lines]


def alone(file):
    found = figures.INSTRUCTION.findall(figures.assembly(file))
    return [line for _, line in found if line != "NOP"]


@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.slow
def test_each_kernel_is_read_as_alone(target):
    cubins = [Path(each["cubin"]) for each in kernels(target)]
    together = figures.instructions(cubins, target)
    assert [names(each) for each in together] == [names(alone(each)) for each in cubins]
    assert [line for each in together for line in each if "LDG" in line]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_figures_do_not_depend_on_company(target):
    every = kernels(target)
    each = [figures.figures([one], target)[0] for one in every]
    assert figures.figures(every, target) == each
    assert len({str(one) for one in each}) == len(every)


@pytest.mark.parametrize(
    ("line", "instruction"),
    [
        ("NOP ;", "NOP"),
        ("NOP;", "NOP"),
        ("@P0 LDG.E R4, desc[UR4][R4.64] ;", "@P0 LDG.E R4, desc[UR4][R4.64]"),
        ("BRA `(.L_x_0) ;", "BRA `(.L_x_0)"),
        ("S2R R0, SR_TID.X                     &wr=0x0          ?trans7;", "S2R R0, SR_TID.X"),
        (
            "LDG.E R4, desc[UR4][R4.64]        &req={2} &wr=0x2 ?trans1;",
            "LDG.E R4, desc[UR4][R4.64]",
        ),
    ],
)
def test_an_instruction_is_read_without_its_schedule(line, instruction):
    """As the disassemblers of CUDA 13.1 and of CUDA 12.8 write it."""
    text = f"        /*00f0*/                   {line}\n        /*0100*/    NOP;\n"
    assert figures.INSTRUCTION.findall(text) == [("00f0", instruction), ("0100", "NOP")]


def test_no_kernel_has_no_figures():
    assert figures.figures([], "sm_90") == []
