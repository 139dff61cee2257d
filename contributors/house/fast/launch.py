"""Launches that are recorded once for tensors of the same layouts, and then made by addresses.

`kernel[grid](...)` finds out at each launch how its arguments specialise the kernel. On one H200 a
launch of this package's rope kernel took 13.0 us of host time; what Triton calls in the end, 5.2.
A `Recorded` function makes tensors from those that it is given, and launches by its first argument:

    @Recorded
    def twice(launch, block, a):
        b, c = a.new_empty(a.shape), a.new_empty(a.shape)
        launch(kernel, (1,), a, b, BLOCK=block)  # kernel[(1,)](a, b, BLOCK=block)
        launch(kernel, (1,), b, c, BLOCK=block)
        return (c,)  # b is temporary

    (c,) = twice((64,), a)

On a GPU of NVIDIA it runs once for all calls with tensors of the same shapes, strides and dtypes,
on tensors of the device "meta", which have no memory. What follows is kept: such a call looks up
one key, makes the results and the temporary tensors, and launches with the arguments that Triton's
launcher once had for these addresses, which torch's allocator gives again and again. Elsewhere, and
where somebody watches launches, the function runs at each call.
"""

import dataclasses
import functools
import inspect
import threading
from types import SimpleNamespace

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

KNOWN = {(3, 6), (3, 7)}
"""The versions of Triton whose launcher is called as below."""


def ceil_div(length, block):
    """Return how many blocks cover a length; `triton.cdiv` takes ten times as long."""
    return -(-length // block)


def power_of_2(length):
    """Return the least power of two that is not less than a length, at least 1."""
    return 1 << (length - 1).bit_length()


class Recorded:
    """A function that launches, called with a tuple of other values and with tensors."""

    def __init__(self, function):
        """Take `function(launch, *how, *tensors)`, which returns new tensors, or None for some."""
        self.function = function
        self._recording = functools.lru_cache(maxsize=1024)(
            lambda _device, how, layouts: Recording(function, how, layouts)
        )

    def __call__(self, how, *tensors):
        """Return the results for tensors, which may be None but for the first one."""
        layouts, addresses, joined = [], [], 0
        for each in tensors:
            layout = address = None
            if each is not None:
                address = each.data_ptr()
                joined |= address if each.is_cuda else 1
                strides = None if each.is_contiguous() else each.stride()
                layout = each.shape, strides, each.dtype
            layouts.append(layout)
            addresses.append(address)
        # Triton specialises a kernel by whether 16 divides an address, for each tensor by itself
        if not joined & 15 and replays():
            device = torch._C._cuda_getDevice()
            recording = self._recording(device, how, tuple(layouts))
            if recording.complete:
                return recording(device, tensors, addresses)
        if tensors[0].is_cuda:
            make_context_current()
        return tuple(self.function(_launch_ordinarily, *how, *tensors))


def _launch_ordinarily(kernel, grid, *arguments, **options):
    kernel[grid](*arguments, **options)


class Recording:
    """The launches of a function, one after the other, on one device."""

    def __init__(self, function, how, layouts):
        """Run the function on tensors of shapes, strides and dtypes; what is no result is gone."""
        self.complete, self._launches, inputs = True, [], []
        for layout in layouts:
            shape, strides, dtype = layout or ((), None, None)
            new = torch.empty(shape, dtype=dtype, device="meta")
            inputs.append(layout and (new.as_strided(shape, strides) if strides else new))
        results = function(self._add, *how, *inputs)
        known = [*inputs, *results]
        self._places = {_memory(x): at for at, x in enumerate(known) if x is not None}
        for _, _, arguments in self._launches:
            for each in arguments:
                each = each.base if isinstance(each, TensorDescriptor) else each
                if isinstance(each, torch.Tensor) and _memory(each) not in self._places:
                    self._places[_memory(each)] = len(known)
                    known.append(each)
        first, self._results, self._new = inputs[0], len(results), []
        for each in known[len(inputs) :]:
            if each is not None:
                options = {} if each.dtype == first.dtype else {"dtype": each.dtype}
                alike = each.shape == first.shape and first.is_contiguous() and not options
                each = alike, each.shape, options
            self._new.append(each)
        self._launches_at = functools.lru_cache(maxsize=1024)(self._bound)

    def _add(self, kernel, grid, *arguments, **options):
        """Add a launch of `kernel[grid](*arguments, **options)`; constants may be keywords."""
        compiled = kernel.run(*arguments, grid=grid, warmup=True, **options)
        self.complete &= not (compiled.run.global_scratch_size or compiled.run.profile_scratch_size)
        rest = map(options.get, kernel.arg_names[len(arguments) :])  # a launcher skips constants
        self._launches.append((compiled, (*grid, 1, 1)[:3], (*arguments, *rest)))

    def __call__(self, device, tensors, addresses):
        """Launch all on the current stream, for tensors at addresses; return the results."""
        first, made = tensors[0], []
        for each in self._new:
            new = address = None
            if each:
                alike, shape, options = each  # the shorter call is the faster one
                new = torch.empty_like(first) if alike else first.new_empty(shape, **options)
                address = new.data_ptr()
            made.append(new)
            addresses.append(address)
        stream = torch._C._cuda_getCurrentRawStream(device)
        for launch, arguments in self._launches_at(stream, *addresses):
            launch(*arguments)
        return tuple(made[: self._results])

    def _bound(self, stream, *addresses):
        """Return the launches for a stream and addresses."""
        make_context_current()

        def argument(each):
            if isinstance(each, TensorDescriptor):
                address = argument(each.base)
                base = SimpleNamespace(data_ptr=lambda: address, dtype=each.base.dtype)
                return dataclasses.replace(each, base=base)
            if isinstance(each, torch.Tensor):
                start = each.storage_offset() * each.dtype.itemsize
                return addresses[self._places[_memory(each)]] + start
            return each

        return [
            _launch(compiled, grid, stream, map(argument, arguments))
            for compiled, grid, arguments in self._launches
        ]


def _memory(tensor):
    """Return what is the same for all views of a tensor of the device "meta"."""
    return tensor.untyped_storage()._cdata


def _launch(compiled, grid, stream, arguments):
    """Return the function that Triton's launcher calls in the end, and its arguments.

    A twin of the launcher has another one in its place, which notes them, with descriptors encoded.
    It takes an address in the place of a tensor, and asks the driver about neither.
    """
    noted, twin, launch = [], object.__new__(type(compiled.run)), compiled.run.launch
    vars(twin).update(vars(compiled.run), launch=lambda *arguments: noted.append(arguments))
    if getattr(launch, "__closure__", None):  # it encodes descriptors
        launch = inspect.getclosurevars(launch).nonlocals["launcher"]
        metadata = getattr(compiled.metadata, "tensordesc_meta", None)
        encoding = triton.backends.nvidia.driver.wrap_handle_tensordesc
        twin.launch = encoding(twin.launch, compiled.src.signature, metadata)
    hooks = None, None, None
    twin(*grid, stream, compiled.function, compiled.packed_metadata, *hooks, *arguments)
    return launch, noted[0]


def replays():
    """Return whether recordings launch: Triton is one that they know, and nobody sees launches."""
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    # a chain of no hooks does nothing; in its place may stand a function
    watched = (enter and getattr(enter, "calls", True)) or (leave and getattr(leave, "calls", True))
    return _is_known() and not watched


@functools.cache
def _is_known():
    """Return whether Triton's version and driver are known, and kernels are not interpreted."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if triton.knobs.runtime.interpret or version not in KNOWN:
        return False
    return type(triton.runtime.driver.active).__module__ == "triton.backends.nvidia.driver"


_threads = threading.local()


def make_context_current():
    """Launch something once in each thread, such as autograd's, before a map is encoded there.

    CUDA makes a context a thread's own at the thread's first launch; encoding a map needs it.
    """
    device = torch.cuda.current_device()
    if getattr(_threads, "device", None) != device:
        torch.zeros(1, device=device)
        _threads.device = device
