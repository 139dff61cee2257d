"""Launches that are recorded once for tensors of the same layouts, and then bound to addresses.

`kernel[grid](...)` finds out at each launch how its arguments specialise the kernel. On one H200 a
launch of this package's rope kernel took 13.0 us of host time; what Triton calls in the end, 5.2.
A `Recorded` function makes tensors from those that it is given, and launches by its first argument:

    @Recorded
    def twice(launch, how, a):
        (block,), b, c = how, a.new_empty(a.shape), a.new_empty(a.shape)
        launch(kernel, (1,), a, b, BLOCK=block)  # kernel[(1,)](a, b, BLOCK=block)
        launch(kernel, (1,), b, c, BLOCK=block)
        return (c,)  # b is temporary

    (c,) = twice((64,), a)

On a GPU of NVIDIA it runs once for all calls with tensors of the same shapes, strides and dtypes,
on tensors of the device "meta", which have no memory. A call makes the results and the temporary
tensors, and calls Triton's launcher with the arguments that were recorded and with the addresses of
its own tensors. Elsewhere, and where somebody watches launches, the function runs at each call.
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
MOST = 1024
"""Recordings of a function, and addresses of a descriptor, that are kept."""


def ceil_div(length, block):
    """Return how many blocks cover a length; `triton.cdiv` takes ten times as long."""
    return -(-length // block)


class Recorded:
    """A function that launches, called with a tuple of other values and with tensors."""

    def __init__(self, function):
        """Take `function(launch, how, *tensors)`, which returns new tensors, or None for some."""
        self._function = function
        self._recording = functools.lru_cache(MOST)(functools.partial(Recording, function))

    def __call__(self, how, *tensors):
        """Return the results for tensors, which may be None but for the first one."""
        layouts, addresses, joined, device = [], [], 0, tensors[0].get_device()  # a CPU: -1
        if device >= 0 and device != torch._C._cuda_getDevice():
            with torch.cuda.device(device):  # which kernels are launched on
                return self(how, *tensors)
        for each in tensors:
            layout = address = None
            if each is not None:
                address = each.data_ptr()
                joined |= address if each.get_device() == device else 1
                strides = None if each.is_contiguous() else each.stride()
                layout = each.shape, strides, each.dtype
            layouts.append(layout)
            addresses.append(address)
        # Triton specialises a kernel by whether 16 divides an address, for each tensor by itself
        if joined & 15 or device < 0 or not replays():
            return tuple(self._function(_launch, how, *tensors))
        stream = torch._C._cuda_getCurrentRawStream(device)
        return self._recording(device, stream, how, tuple(layouts))(addresses)


def _launch(kernel, grid, *arguments, **options):
    """Launch a kernel, whose constants may be keywords."""
    if torch.cuda.is_initialized():
        _make_context_current()
    kernel[grid](*arguments, **options)


class Recording:
    """The tensors and the launches of a function, for given layouts and one stream."""

    def __init__(self, function, device, stream, how, layouts):
        """Run the function on tensors without memory, and compile what it launches."""
        _make_context_current()
        launches, tensors = [], [layout and _without_memory(*layout) for layout in layouts]

        def launch(kernel, grid, *arguments, **options):
            compiled = kernel.run(*arguments, grid=grid, warmup=True, **options)
            rest = map(options.get, kernel.arg_names[len(arguments) :])  # the launcher's order
            launches.append((compiled, (*grid, 1, 1)[:3], (*arguments, *rest)))

        results = function(launch, how, *tensors)
        self._results = len(results)
        self._missing = [at for at, each in enumerate(results) if each is None]
        tensors += [each for each in results if each is not None]
        places = {_memory(each): at for at, each in enumerate(tensors) if each is not None}
        self._launches = [_bindable(tensors, places, stream, *each) for each in launches]
        self._made = [torch.empty_like(each, device=device) for each in tensors[len(layouts) :]]
        for each in self._made:  # `torch.empty_like` is the fastest way to a new one
            each.untyped_storage().resize_(0)

    def __call__(self, addresses):
        """Launch all for tensors at addresses; return the results."""
        made = [torch.empty_like(each) for each in self._made]
        addresses += [each.data_ptr() for each in made]
        for launch, arguments, bound in self._launches:
            arguments = arguments.copy()
            for at, place, offset, encode in bound:
                address = addresses[place] + offset
                arguments[at] = encode(address) if encode else address
            launch(*arguments)
        for at in self._missing:
            made.insert(at, None)
        return tuple(made[: self._results])


def _bindable(tensors, places, stream, compiled, grid, arguments):
    """Return a function, its arguments, and which of them follow from the addresses of a call.

    The function is what Triton's launcher calls in the end, which a twin of it notes. It takes an
    address in the place of a tensor, and does not ask the driver about it.

    Args:
        tensors: Those that a call has at addresses; temporary ones are added.
        places: Where in this list is a memory.
        stream, compiled, grid, arguments: The launch.
    """
    taken, bound, launch = [], [], compiled.run.launch
    metadata = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    for each in arguments:
        encode, rest, tensor = None, (), each
        if isinstance(each, TensorDescriptor):
            encode = functools.lru_cache(MOST)(functools.partial(_encoded, each, next(metadata)))
            tensor, rest = each.base, (*each.shape, *each.strides)
        if isinstance(tensor, torch.Tensor):
            memory, offset = _memory(tensor), tensor.storage_offset() * tensor.dtype.itemsize
            if memory not in places:
                places[memory] = len(tensors)
                size = tensor.untyped_storage().nbytes()
                tensors.append(tensor.new_empty(size, dtype=torch.uint8))
            bound.append((len(taken), places[memory], offset, encode))
        taken += each, *rest
    if getattr(launch, "__closure__", None):  # it encodes descriptors
        launch = inspect.getclosurevars(launch).nonlocals["launcher"]
    noted, twin = [], object.__new__(type(compiled.run))
    vars(twin).update(vars(compiled.run), launch=lambda *first: noted.extend(first))
    twin(*grid, stream, compiled.function, compiled.packed_metadata, None, None, None)
    if noted[-1] == ():  # Triton 3.7 takes a kernel's arguments as one
        launch = functools.partial(launch, *noted[:-1])
        return lambda *arguments: launch(arguments), taken, bound
    return functools.partial(launch, *noted), taken, bound


def _without_memory(shape, strides, dtype):
    """Return a tensor of a layout; without strides, a contiguous one."""
    new = torch.empty(shape, dtype=dtype, device="meta")
    return new.as_strided(shape, strides) if strides else new


def _memory(tensor):
    """Return what is the same for all views of a tensor of the device "meta"."""
    return tensor.untyped_storage()._cdata


def _encoded(descriptor, metadata, address):
    """Return the map of a descriptor for a base at an address."""
    _make_context_current()
    base = SimpleNamespace(data_ptr=lambda: address, dtype=descriptor.base.dtype)
    descriptor = dataclasses.replace(descriptor, base=base)
    return triton.backends.nvidia.driver.make_tensordesc_arg(descriptor, metadata)[0]


def replays():
    """Return whether recordings launch: Triton is one that they know, and nobody sees launches."""
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    # a chain of no hooks does nothing; in its place may stand a function
    watched = getattr(enter, "calls", enter) or getattr(leave, "calls", leave)
    return _is_known() and not watched


@functools.cache
def _is_known():
    """Return whether Triton's version and driver are known, and kernels are not interpreted."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if triton.knobs.runtime.interpret or version not in KNOWN:
        return False
    return type(triton.runtime.driver.active).__module__ == "triton.backends.nvidia.driver"


_threads = threading.local()


def _make_context_current():
    """Launch something once in each thread, such as autograd's, before a map is encoded there.

    CUDA makes a context a thread's own at the thread's first launch; encoding a map needs it.
    """
    device = torch.cuda.current_device()
    if getattr(_threads, "device", None) != device:
        torch.zeros(1, device=device)
        _threads.device = device
