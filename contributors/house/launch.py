"""Launch a kernel on shapes that were seen before for the price of its launcher.

`kernel[grid](...)` finds out at each launch how its arguments specialise it. On one H200 a launch
of this folder's rope kernel took 13.0 us of host time; its launcher, called directly, 5.2 us. A
`Plan` is for tensors of the same dtypes at each launch and fixes all other arguments, so that only
the tensors' alignment is left to look at:

    plan = Plan(kernel, grid=(4096,), rest=(n, stride, BLOCK), num_warps=4)
    plan(x, out)  # kernel[(4096,)](x, out, n, stride, BLOCK, num_warps=4)

Copy this file where you want the same: it needs torch and Triton alone. Where Triton's version, its
driver or its settings are not those that it knows, it launches in the ordinary way.
"""

import torch
import triton
from triton.runtime.jit import JITFunction

KNOWN = {(3, 6), (3, 7)}
"""The versions of Triton whose launchers are called as below."""


class Plan:
    """A kernel with its grid and all arguments but the tensors, which come first."""

    def __init__(self, kernel, grid, rest, **options):
        """Launch nothing yet; see the module's example."""
        self._kernel, self._rest, self._options = kernel, rest, options
        self._grid = (*grid, 1, 1)[:3]
        self._direct = can_launch_directly(kernel)
        self._ready = {}

    def __call__(self, *tensors):
        """Launch the kernel on the current device and stream; None stands for no tensor.

        Each launch gets tensors of the same dtypes, and None in the same places.
        """
        addresses = 0
        for each in tensors:
            if each is not None:
                addresses |= each.data_ptr()
        # Triton specialises a kernel by whether 16 divides an address, for each tensor by itself
        if addresses & 15 or not self._direct or watched(self._kernel):
            self._kernel[self._grid](*tensors, *self._rest, **self._options)
            return
        device = torch._C._cuda_getDevice()
        ready = self._ready.get(device)
        if ready is None:
            compiled = self._kernel[self._grid](*tensors, *self._rest, **self._options)
            self._ready[device] = compiled.run, compiled.function, compiled.packed_metadata
            return
        run, function, metadata = ready
        stream = torch._C._cuda_getCurrentRawStream(device)
        # the three that follow are a launch's hooks and what they are told
        run(*self._grid, stream, function, metadata, None, None, None, *tensors, *self._rest)


def can_launch_directly(kernel):
    """Return whether this is a kernel, a driver and a version whose launcher is known."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if not isinstance(kernel, JITFunction) or version not in KNOWN:  # or it is interpreted
        return False
    return type(triton.runtime.driver.active).__module__ == "triton.backends.nvidia.driver"


def watched(kernel):
    """Return whether somebody has asked to see launches, or for another compilation."""
    runtime = triton.knobs.runtime
    return (
        runtime.debug
        or kernel.debug
        or kernel.pre_run_hooks
        or runtime.add_stages_inspection_hook is not None
        or has_calls(runtime.launch_enter_hook)
        or has_calls(runtime.launch_exit_hook)
    )


def has_calls(hook):
    """Return whether a hook does anything: a chain of none does not."""
    return hook is not None and getattr(hook, "calls", True)
