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
        self.kernel, self._rest, self._options = kernel, rest, options
        self._grid = (*grid, 1, 1)[:3]
        self.direct = can_launch_directly(kernel)
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
        if joined & 15 or not self.direct or watched(self.kernel):
            self.launch(tensors)
            return
        device = torch._C._cuda_getDevice()
        ready = self._ready.get(device)
        if ready is None:
            self._ready[device] = self.prepare(tensors)
        else:
            launch, arguments_of = ready
            launch(*arguments_of(torch._C._cuda_getCurrentRawStream(device), addresses))

    def prepare(self, tensors):
        """Launch in the ordinary way; return how to launch from now on, as `direct` does, or None.

        None: in the ordinary way.
        """
        named = self.kernel.arg_names[len(tensors) + len(self._rest) :]
        rest = (*self._rest, *map(self._options.get, named))  # a launcher skips constants
        return self._directly(self.launch(tensors), rest)

    def launch(self, tensors):
        """Launch in the ordinary way; return the compiled kernel."""
        return self.kernel[self._grid](*tensors, *self._rest, **self._options)

    def _directly(self, compiled, rest):
        return direct(compiled, self._grid, rest)


def can_launch_directly(kernel):
    """Return whether this is a kernel, a driver and a version whose launcher is known."""
    if not isinstance(kernel, JITFunction) or VERSION not in KNOWN:  # or it is interpreted
        return False
    return type(triton.runtime.driver.active).__module__ == "triton.backends.nvidia.driver"


def direct(compiled, grid, rest, launcher=None):
    """Return a compiled kernel's launcher, and its arguments by a stream and tensors' addresses.

    A launcher takes an address in the place of a tensor, and asks the driver about neither. One may
    be given in the place of the kernel's own.
    """
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    (x, y, z), hooks = grid, (None, None)
    if allocates(run):
        before = (function, metadata, None, *hooks)  # None: the metadata that hooks are given
        return run, lambda stream, addresses: (x, y, z, stream, *before, *addresses, *rest)
    # what `run` would call, less its allocation of scratch memory
    c, before = launcher or run.launch, (function, run.launch_cooperative_grid, run.launch_pdl)
    scratch = (None, None)
    if VERSION < (3, 7):
        before = (*before, *scratch, metadata, None, *hooks)
        return c, lambda stream, addresses: (x, y, z, stream, *before, *addresses, *rest)
    # the last two say how to read the arguments
    before = (*before, metadata, None, *hooks, *scratch, run.arg_annotations, run.kernel_signature)
    return c, lambda stream, addresses: (x, y, z, stream, *before, (*addresses, *rest))


def allocates(run):
    """Return whether a launcher allocates memory for each launch."""
    return run.global_scratch_size or run.profile_scratch_size


def watched(*kernels):
    """Return whether somebody has asked to see launches, or for another compilation."""
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return (
        runtime.debug
        or runtime.add_stages_inspection_hook is not None
        # a chain of no hooks does nothing; in their place may stand a function
        or (enter is not None and getattr(enter, "calls", True))
        or (leave is not None and getattr(leave, "calls", True))
        or any(kernel.debug or kernel.pre_run_hooks for kernel in kernels)
    )
