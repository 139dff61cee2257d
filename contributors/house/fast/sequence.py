"""The launches of one direction, planned on the layouts of its tensors and made by addresses.

A `Direction` is a function that plans on operands, which are tensors without memory, as it would
compute on tensors. Its `Sequence` of launches is kept for all calls with tensors of the same
shapes, strides, dtypes and alignment. Such a call looks up one key, makes the results and one
buffer for all temporary tensors, and hands addresses to Triton's launchers:

    @Direction
    def twice(s, a):
        b, c = s.empty(*a.shape), s.empty(*a.shape)
        s.launch(plan, a, b)  # see launch.py
        s.launch(plan, b, c)
        return (c,)  # b is temporary

    (c,) = twice((), a)

The launchers' arguments are kept by the addresses, which torch's allocator gives again and again.
"""

import functools
from dataclasses import dataclass, replace
from math import prod

import torch

from . import forms, launch

LINE = 256
"""A temporary tensor begins at a multiple of so many bytes of the buffer."""


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A tensor as a plan knows it: all but the address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    aligned: bool = True
    """Whether 16 divides its address."""
    base: "Operand | None" = None
    """The operand in whose memory it lies, if that is another one."""
    start: int = 0
    """Where it begins there, in elements."""

    @property
    def T(self):
        """The transpose."""
        return self.seen_as(self.shape[::-1], self.strides[::-1])

    def flat(self):
        """Return a contiguous operand as the matrix of its rows."""
        shape = prod(self.shape[:-1]), self.shape[-1]
        return self if len(self.shape) == 2 else self.seen_as(shape, contiguous(shape))

    def seen_as(self, shape, strides, start=0):
        """Return some of the same memory, from an element on, in another shape."""
        base = self.base or self
        return replace(self, shape=shape, strides=strides, base=base, start=self.start + start)

    def lying_in(self, tensor):
        """Return this operand as a tensor, given the tensor of its base."""
        if self.base is None:
            return tensor
        return tensor.as_strided(self.shape, self.strides, tensor.storage_offset() + self.start)


def contiguous(shape):
    """Return the strides of a contiguous tensor."""
    return tuple(prod(shape[place + 1 :]) for place in range(len(shape)))


class Direction:
    """A function that plans launches, called with tensors in the place of operands."""

    def __init__(self, function, pairs=()):
        """Plan nothing yet.

        Args:
            function: Plan the launches of a call: `function(sequence, *how, *operands)`. It returns
                the results: operands that the sequence made, or None.
            pairs: Pairs of tensors, by their places, whose distances in bytes come after `how`.
        """
        self._function, self._pairs = function, pairs
        self._kept = functools.lru_cache(maxsize=1024)(self._planned)

    def __call__(self, how, *tensors):
        """Return the results for tensors, which may be None, and a tuple of other values."""
        layouts, addresses, joined = [], [], 0
        for each in tensors:
            if each is None:
                layouts.append(None)
                addresses.append(None)
            else:
                address = each.data_ptr()
                joined |= address
                addresses.append(address)
                strides = None if each.is_contiguous() else each.stride()
                layouts.append((each.shape, strides, each.dtype, each.is_cuda))
        odd = joined & 15 and tuple([bool(address and address & 15) for address in addresses])
        apart = tuple([addresses[second] - addresses[first] for first, second in self._pairs])
        sequence, uneven = self._kept(forms.forced, (*how, *apart), odd, tuple(layouts))
        if uneven:
            dense = (each.contiguous() if at in uneven else each for at, each in enumerate(tensors))
            return self(how, *dense)
        return sequence(tensors, addresses)

    def _planned(self, forced, how, odd, layouts):
        """Return a sequence, or the places of tensors that must be made contiguous before."""
        sequence = Sequence(layouts, odd)
        try:
            sequence.close(self._function(sequence, *how, *sequence.inputs))
        except Uneven as uneven:
            return None, [sequence.inputs.index(each.base or each) for each in uneven.args]
        return sequence, ()


class Uneven(Exception):
    """Its arguments are operands that must be contiguous."""


def alike(*operands):
    """Return operands, which must have one shape and the same strides."""
    if len({each.shape for each in operands}) > 1:
        raise ValueError("weights of different shapes")
    if len({each.strides for each in operands}) > 1:
        raise Uneven(*operands)
    return operands


class Sequence:
    """The launches of a direction, one after the other."""

    def __init__(self, layouts, odd=()):
        """Plan nothing yet.

        A layout, if it is not None, is shape, strides (None: contiguous), dtype, whether on a GPU.
        """
        self.inputs = [
            layout and Operand(
                layout[0], layout[1] or contiguous(layout[0]), layout[2],
                aligned=not (odd and odd[place]),
            )
            for place, layout in enumerate(layouts)
        ]  # fmt: skip
        self._direct = all(layout[3] for layout in layouts if layout)
        self._new, self._steps, self._zeros, self._ready = [], [], [], {}

    def empty(self, *shape, dtype=None):
        """Return a new operand, of the first tensor's dtype if no other is named."""
        new = Operand(shape, contiguous(shape), dtype or self.inputs[0].dtype)
        self._new.append(new)
        return new

    def zeros(self, *shape):
        """Return a new operand full of zeros, which must be a result."""
        self._zeros.append(self.empty(*shape))
        return self._zeros[-1]

    def launch(self, plan, *operands):
        """Add a launch; None stands for no tensor."""
        self._steps.append((plan, operands))

    def close(self, results):
        """Take the results, new operands or None; the other new ones are temporary."""
        of_first = self.inputs[0].dtype
        self._results = results
        self._made = [
            each and (each.shape, {} if each.dtype == of_first else {"dtype": each.dtype})
            for each in results
        ]
        self._zeros = [results.index(each) for each in self._zeros]
        self._direct &= all(plan.direct for plan, _ in self._steps)
        self._kernels = list(dict.fromkeys(plan.kernel for plan, _ in self._steps))
        self._temporary = [each for each in self._new if each not in results]
        # where an operand begins: so many bytes behind an input, a result or the buffer
        begins = {each: (place, 0) for place, each in enumerate((*self.inputs, *results))}
        buffer, size = len(self.inputs) + len(results), 0
        for each in self._temporary:
            begins[each] = buffer, size
            size += forms.ceil_div(prod(each.shape) * each.dtype.itemsize, LINE) * LINE
        self._size = size // of_first.itemsize

        def begin_of(each):
            place, behind = begins[each.base or each]
            return place, behind + each.start * each.dtype.itemsize

        self._begins = [[each and begin_of(each) for each in some] for _, some in self._steps]

    def __call__(self, tensors, addresses):
        """Launch all on the current device and stream; return the results.

        tensors: Those of the inputs, at these addresses.
        """
        new_empty, results = tensors[0].new_empty, []
        for made in self._made:
            new = address = None
            if made:
                shape, options = made
                new = new_empty(*shape, **options) if options else new_empty(*shape)
                address = new.data_ptr()
            results.append(new)
            addresses.append(address)
        for place in self._zeros:
            results[place].zero_()
        if not self._direct or launch.watched(*self._kernels):
            for plan, operands in self._in_memory(tensors, results):
                plan.launch(operands)
            return results
        device = torch._C._cuda_getDevice()
        launches_at = self._ready.get(device)
        if launches_at is None:
            self._ready[device] = self._prepare(tensors, results)
            return results
        if self._size:
            buffer = new_empty(self._size)
            addresses.append(buffer.data_ptr())
        stream = torch._C._cuda_getCurrentRawStream(device)
        for call, arguments in launches_at(stream, *addresses):
            call(*arguments)
        return results

    def _prepare(self, tensors, results):
        """Launch in the ordinary way; return a function that finds the launches for a stream and
        addresses, or None if a launcher cannot be called.
        """
        launchers = [plan.prepare(some) for plan, some in self._in_memory(tensors, results)]
        if not all(launchers):
            return None

        @functools.lru_cache(maxsize=1024)
        def launches_at(stream, *addresses):
            return [
                (call, arguments_of(stream, [at and addresses[at[0]] + at[1] for at in begins]))
                for (call, arguments_of), begins in zip(launchers, self._begins, strict=True)
            ]

        return launches_at

    def _in_memory(self, tensors, results):
        """Return the plans with tensors in the place of their operands."""
        of_base = dict(zip((*self.inputs, *self._results), (*tensors, *results), strict=True))
        for each in self._temporary:
            of_base[each] = tensors[0].new_empty(each.shape, dtype=each.dtype)
        return [
            (plan, [each and each.lying_in(of_base[each.base or each]) for each in operands])
            for plan, operands in self._steps
        ]
