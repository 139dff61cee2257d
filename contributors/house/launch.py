"""Launch a kernel on shapes that were seen before for the price of its launcher.

`kernel[grid](...)` finds out at each launch how its arguments specialise it. On one H200 a launch
of this folder's rope kernel took 13.0 us of host time; its launcher, called directly, 5.2 us. A
`Plan` is for tensors of the same dtypes at each launch and fixes all other arguments, so that only
the tensors' addresses are left to look at:

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
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])


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
        joined, addresses = 0, []
        for each in tensors:
            if each is not None:
                each = each.data_ptr() if each.is_cuda else 1
                joined |= each
            addresses.append(each)
        # Triton specialises a kernel by whether 16 divides an address, for each tensor by itself
        if joined & 15 or not self._direct or watched(self._kernel):
            self._kernel[self._grid](*tensors, *self._rest, **self._options)
            return
        device = torch._C._cuda_getDevice()
        launch = self._ready.get(device)
        if launch is None:
            compiled = self._kernel[self._grid](*tensors, *self._rest, **self._options)
            self._ready[device] = direct(compiled, self._grid, self._rest)
        else:
            launch(torch._C._cuda_getCurrentRawStream(device), addresses)


def can_launch_directly(kernel):
    """Return whether this is a kernel, a driver and a version whose launcher is known."""
    if not isinstance(kernel, JITFunction) or VERSION not in KNOWN:  # or it is interpreted
        return False
    return type(triton.runtime.driver.active).__module__ == "triton.backends.nvidia.driver"


def direct(compiled, grid, rest):
    """Return a function of a stream and the tensors' addresses that launches a compiled kernel.

    A launcher takes an address in the place of a tensor, and asks the driver about neither.
    """
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    (x, y, z), hooks = grid, (None, None)
    if run.global_scratch_size or run.profile_scratch_size:
        before = (function, metadata, None, *hooks)  # None: the metadata that hooks are given
        return lambda stream, addresses: run(x, y, z, stream, *before, *addresses, *rest)
    # what `run` would call, less its allocation of scratch memory
    c, before = run.launch, (function, run.launch_cooperative_grid, run.launch_pdl)
    scratch = (None, None)
    if VERSION < (3, 7):
        before = (*before, *scratch, metadata, None, *hooks)
        return lambda stream, addresses: c(x, y, z, stream, *before, *addresses, *rest)
    # the last two say how to read the arguments
    before = (*before, metadata, None, *hooks, *scratch, run.arg_annotations, run.kernel_signature)
    return lambda stream, addresses: c(x, y, z, stream, *before, (*addresses, *rest))


def watched(kernel):
    """Return whether somebody has asked to see launches, or for another compilation."""
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return (
        runtime.debug
        or kernel.debug
        or kernel.pre_run_hooks
        or runtime.add_stages_inspection_hook is not None
        # a chain of no hooks does nothing; in their place may stand a function
        or (enter is not None and getattr(enter, "calls", True))
        or (leave is not None and getattr(leave, "calls", True))
    )
