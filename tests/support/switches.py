"""Solutions that change Triton's settings, so that a kernel would be judged otherwise."""

SOURCE = """
import os

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.driver import DriverBase
from triton.runtime import driver, interpreter

class Everything(DriverBase):
    is_active = map_python_to_cpp_type = get_current_target = get_benchmarker = lambda *_: None
    get_active_torch_device = lambda *_: torch.device("cpu")

{first}

def negate(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, -tl.load(x + at))

def rotate_half(x, *, interleaved=False):
    {within}
    y = torch.empty_like(x)
    {jit}(negate)[(1,)](x, y, {width})
    return y
"""
AS_IT_IS = {"first": "", "within": "", "jit": "triton.jit", "width": "63"}
INTERPRET = {
    "the variable": {"first": "os.environ['TRITON_INTERPRET'] = '1'"},
    "the variable within the call": {"within": "os.environ['TRITON_INTERPRET'] = '1'"},
    "the variable of the system": {"first": "os.putenv('TRITON_INTERPRET', '1')"},
    "the setting": {"within": "knobs.runtime.interpret = True"},
    "the interpreter's class": {"jit": "interpreter.InterpretedFunction"},
}
"""What a solution may change so that its kernels would be interpreted."""
SWITCHES = {
    **INTERPRET,
    "no compilation": {"first": "knobs.runtime.jit_cache_hook = lambda **_: True"},
    "another GPU": {"first": "os.environ['TRITON_OVERRIDE_ARCH'] = 'sm80'"},
    "another driver": {"first": "driver.set_active(Everything())"},
    "another driver within the call": {"within": "driver._active = Everything()"},
}
"""What a solution may change so that its kernels would not be compiled for the target."""


def solution_text(**parts: str) -> str:
    """Return the text of a solution that differs from the usual one in these parts."""
    return SOURCE.format(**AS_IT_IS | parts)
