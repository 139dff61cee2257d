"""What a compiler made of a kernel: each figure against kernels whose answer is known."""

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
from common.tools.figures import PROCESSORS, occupancy


@triton.jit
def copy(x, y, step: tl.constexpr, BLOCK: tl.constexpr):
    offs = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) * step
    tl.store(y + offs, tl.load(x + offs))


@triton.jit
def product(a, b, c, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    at = rows * N + columns
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)).to(tl.float16))


def files(kernel, pointers, constants, target, dtype="fp32", scalars=None, **options):
    """Return the files of a kernel whose pointers are aligned, by ending."""
    aligned = {(n,): [["tt.divisibility", 16]] for n in range(len(pointers))}
    signature = dict.fromkeys(pointers, f"*{dtype}") | (scalars or {})
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constants, aligned)
    gpu = TARGETS[target]
    made = triton.compile(source, GPUTarget(gpu.backend, gpu.arch, gpu.warp), options or None)
    return {path.rpartition(".")[2]: path for path in made.metadata_group.values()}


def compiled(kernel, pointers, constants, target, dtype="fp32", **options):
    return figures.figures([files(kernel, pointers, constants, target, dtype, **options)], target)[
        0
    ]


def of_copy(target, step=1, block=1024, **options):
    return compiled(copy, ("x", "y"), {"step": step, "BLOCK": block}, target, **options)


@pytest.mark.parametrize("target", PROCESSORS)
@pytest.mark.slow
def test_figures_are_those_that_the_kernel_must_have(target):
    short, strided = of_copy(target, block=2048, num_warps=8), of_copy(target, step=3)
    assert (short["wide"], short["warps"], short["shared"], short["tensor"]) == (1, 8, 0, 0)
    assert strided["wide"] == 0
    long = of_copy(target, block=16384)
    assert long["instructions"] > 2 * short["instructions"]
    assert long["registers"] > 2 * short["registers"]
    found = compiled(product, ("a", "b", "c"), {"N": 64}, target, "fp16")
    assert found["tensor"] > 0 and found["shared"] > 0


@pytest.mark.slow
def test_registers_that_do_not_fit_are_local_memory():
    free = of_copy("sm_90", block=16384)
    bound = of_copy("sm_90", block=16384, maxnreg=24)
    assert free["local"] == 0
    assert bound["registers"] <= 24 and bound["local"] > 100


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "share"),
    [
        ("sm_90", 32, 0, 4, 1.0),  # 16 blocks of 4096 registers
        ("sm_90", 255, 0, 4, 8 / 64),  # 2 blocks of 32768 registers
        ("sm_90", 32, 113 << 10, 4, 8 / 64),  # 2 blocks of shared memory
        ("sm_90", 33, 0, 4, 48 / 64),  # handed out by the eight: 12 blocks of 5120
        ("sm_90", 16, 0, 1, 32 / 64),  # no more than 32 blocks
        ("sm_90", 255, 227 << 10, 64, 0.0),
        ("gfx942", 128, 0, 4, 0.5),  # four SIMD units of 512 registers
        ("gfx942", 64, 0, 4, 1.0),
    ],
)
def test_occupancy_is_that_of_the_scarcest(target, registers, shared, warps, share):
    assert occupancy(PROCESSORS[target], registers, shared, warps) == share


def test_every_target_has_its_limits():
    assert PROCESSORS.keys() == TARGETS.keys()


# --- many binaries in one process of the disassembler ---------------------------------------------


NVIDIA = [name for name, target in TARGETS.items() if target.backend == "cuda"]


@triton.jit
def sine(x, y, n, BLOCK: tl.constexpr):
    for at in range(0, n, BLOCK):
        offs = at + tl.arange(0, BLOCK)
        tl.store(y + offs, tl.sin(tl.load(x + offs, offs < n)), offs < n)


def kernels(target):
    return [
        files(copy, ("x", "y"), {"step": 1, "BLOCK": 256}, target),
        files(sine, ("x", "y"), {"BLOCK": 512}, target, scalars={"n": "i32"}),
        files(product, ("a", "b", "c"), {"N": 64}, target, "fp16"),
        files(copy, ("x", "y"), {"step": 1, "BLOCK": 2048}, target),
    ]


def names(lines):
    """Return the instructions without their operands: alone, a branch goes to a label."""
    return [re.sub(r"^@!?U?P\w+ ", "", line).split()[0] for line in lines]


@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.slow
def test_each_kernel_is_read_as_alone(target):
    every = kernels(target)
    together = figures.instructions([Path(table["cubin"]) for table in every], target)
    alone = [figures.INSTRUCTION.findall(figures.assembly(table)) for table in every]
    assert [names(each) for each in together] == [
        names(line for _, line in each if line != "NOP") for each in alone
    ]
    assert [line for each in together for line in each if "LDG" in line]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_figures_do_not_depend_on_company(target):
    every = kernels(target)
    each = [figures.figures([one], target)[0] for one in every]
    assert figures.figures(every, target) == each
    assert len({str(one) for one in each}) == len(every)
    assert figures.figures([], target) == []


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
