"""What a compiler made of a kernel: each figure against kernels whose answer is known."""

from __future__ import annotations

import re

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from common.sandbox.target import TARGETS
from common.tools.compilation import assembly, figures


@triton.jit
def copy(x, y, step: tl.constexpr, BLOCK: tl.constexpr):
    offs = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) * step
    tl.store(y + offs, tl.load(x + offs))


@triton.jit
def product(a, b, c, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    at = rows * N + columns
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)).to(tl.float16))


def files(kernel, pointers, constants, target, dtype="fp32", **options):
    """Return the files of a kernel whose pointers are aligned, by ending."""
    aligned = {(n,): [["tt.divisibility", 16]] for n in range(len(pointers))}
    signature = dict.fromkeys(pointers, f"*{dtype}") | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constants, aligned)
    gpu = TARGETS[target]
    made = triton.compile(source, GPUTarget(gpu.backend, gpu.arch, gpu.warp), options or None)
    return {path.rpartition(".")[2]: path for path in made.metadata_group.values()}


def of_copy(target, block=1024, **options):
    return figures(files(copy, ("x", "y"), {"step": 1, "BLOCK": block}, target, **options))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_figures_are_those_that_the_kernel_must_have(target):
    short, long = of_copy(target, 2048, num_warps=8), of_copy(target, 16384)
    assert (short["warps"], short["shared"], short["local"]) == (8, 0, 0)
    assert long["instructions"] > 2 * short["instructions"]
    assert long["registers"] > 2 * short["registers"]
    assert figures(files(product, ("a", "b", "c"), {"N": 64}, target, "fp16"))["shared"] > 0


@pytest.mark.parametrize("target", [name for name in TARGETS if name.startswith("sm_")])
@pytest.mark.slow
def test_instructions_are_those_of_the_disassembler_but_for_padding(target):
    made = files(product, ("a", "b", "c"), {"N": 64}, target, "fp16")
    lines = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(\S+)", assembly(made), re.MULTILINE)
    assert figures(made)["instructions"] == sum(not line.startswith("NOP") for line in lines) > 100


@pytest.mark.slow
def test_registers_that_do_not_fit_are_local_memory():
    bound = of_copy("sm_90", block=16384, maxnreg=24)
    assert bound["registers"] <= 24 and bound["local"] > 100
