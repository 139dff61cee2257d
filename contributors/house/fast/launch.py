"""Launches that are recorded once for tensors of the same layouts, and then made by addresses.

`kernel[grid](...)` finds out at each launch how its arguments specialise the kernel. On one H200 a
launch of this package's rope kernel took 13.0 us of host time; what Triton calls in the end, 5.2.
A `Recorded` function gets what makes its tensors and launches:

    @Recorded
    def twice(launch, block, a):
        b, c = launch.empty(a, *a.shape), launch.empty(a, *a.shape)
        launch(kernel, (1,), a, b, BLOCK=block)  # kernel[(1,)](a, b, BLOCK=block)
        launch(kernel, (1,), b, c, BLOCK=block)
        return (c,)  # b is temporary

    (c,) = twice((64,), a)

On a GPU of NVIDIA, a call with tensors of known shapes, strides and dtypes makes all tensors at
once. If these and the given ones have addresses that came before, which torch's allocator gives
again and again, it calls Triton's launcher with the arguments that it had then. Otherwise, and
where somebody watches launches, the function runs.
"""

import functools
import threading

import torch
import triton

KNOWN = {(3, 6), (3, 7)}
"""The versions of Triton whose launcher is called as below."""
MOST = 1024
"""Layouts of a function that are kept, and addresses of a layout."""


def ceil_div(length, block):
    """Return how many blocks cover a length; `triton.cdiv` takes ten times as long."""
    return -(-length // block)


class Launch:
    """What a function makes tensors and launches by; on a stream, it notes both."""

    def __init__(self, stream=None, prepared=()):
        """Take the tensors that will be made, or none if they are not known."""
        self.made, self.calls, self._stream, self._prepared = [], [], stream, iter(prepared)

    def empty(self, like, *shape, dtype=None):
        """Return a new tensor beside another one, of its dtype unless one is given."""
        new = next(self._prepared, None)
        self.made.append(like.new_empty(shape, dtype=dtype) if new is None else new)
        return self.made[-1]

    def __call__(self, kernel, grid, *arguments, **options):
        """Launch a kernel, whose constants may be keywords."""
        if torch.cuda.is_initialized():
            _make_context_current()
        compiled = kernel[grid](*arguments, **options)
        if self._stream is not None:
            rest = map(options.get, kernel.arg_names[len(arguments) :])  # the launcher's order
            arguments = [
                each.data_ptr() if isinstance(each, torch.Tensor) else each
                for each in (*arguments, *rest)
            ]
            self.calls.append(_call(compiled, (*grid, 1, 1)[:3], self._stream, arguments))


class Recorded:
    """A function that launches, called with a tuple of other values and with tensors."""

    def __init__(self, function):
        """Take `function(launch, *how, *tensors)`, which returns new tensors, or None for some."""
        self._function = function
        self._recording = functools.lru_cache(maxsize=MOST)(lambda *_: Recording())

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
        if joined & 15 or not replays():
            return tuple(self._function(Launch(), *how, *tensors))
        recording = self._recording(torch._C._cuda_getDevice(), how, tuple(layouts))
        return recording(self._function, how, tensors, addresses)


class Recording:
    """What a function makes and launches for tensors of the same layouts, on one device."""

    def __init__(self):
        """Know nothing yet."""
        self._made, self._results, self._calls = (), (), {}

    def __call__(self, function, how, tensors, addresses):
        """Return the function's results for tensors at addresses."""
        made = [torch.empty_like(each) for each in self._made]  # `new_empty` takes thrice as long
        for each in made:
            addresses.append(each.data_ptr())
        stream = torch._C._cuda_getCurrentRawStream(tensors[0].get_device())
        calls = self._calls.get((stream, *addresses))
        if calls is None:
            return self._record(function, how, tensors, addresses, stream, made)
        for launch, arguments in calls:
            launch(*arguments)
        return tuple([place if place is None else made[place] for place in self._results])

    def _record(self, function, how, tensors, addresses, stream, made):
        launch = Launch(stream, made)
        results = tuple(function(launch, *how, *tensors))
        addresses += [each.data_ptr() for each in launch.made[len(made) :]]
        places = {id(each): place for place, each in enumerate(launch.made)}
        self._made = [torch.empty_like(each) for each in launch.made]
        for each in self._made:  # which has a shape and a dtype, and no memory
            each.untyped_storage().resize_(0)
        self._results = [each if each is None else places[id(each)] for each in results]
        if len(self._calls) == MOST:
            self._calls.clear()
        self._calls[stream, *addresses] = launch.calls
        return results


def _call(compiled, grid, stream, arguments):
    """Return the function that Triton's launcher calls in the end, and its arguments.

    A twin of the launcher has another one in its place, which notes them, with descriptors encoded.
    It takes an address in the place of a tensor, and does not ask the driver about it.
    """
    noted, twin, launch = [], object.__new__(type(compiled.run)), compiled.run.launch
    vars(twin).update(vars(compiled.run), launch=lambda *arguments: noted.append(arguments))
    if getattr(launch, "__closure__", None):  # it encodes descriptors
        cells = dict(zip(launch.__code__.co_freevars, launch.__closure__, strict=True))
        launch = cells["launcher"].cell_contents
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
