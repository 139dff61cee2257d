"""Bounds checks: every lane's address must lie in a tensor that its launch may touch.

A launch may touch its arguments and, through an address that the kernel loaded, every live tensor
(see `spans.ANYWHERE`). Triton's interpreter reads and writes any address without a check.
`watch_memory()` patches its loads, stores and atomics, so that each address is checked first.
`WATCH` holds the memory of the running launch and logs each out-of-bounds access.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from common.arena import extent
from common.errors import Kind
from common.sandbox import target
from common.sandbox.interpreter import explanation, spans, together
from common.sandbox.interpreter.explanation import ATOMIC, READS, WRITES, Conflicts, Rerun, Wrap
from common.sandbox.interpreter.language import annotated
from common.sandbox.interpreter.operations import Operation, wrap, wrap_each
from common.sandbox.interpreter.spans import Act, Mask, Span
from common.sandbox.interpreter.together import ProgramGroup
from common.source import Place, Reason
from common.verdicts import Failure

SHOWN = 6
"""The integer arguments in a report, if no offset wrapped: sizes come first, and then strides."""


class WatchedLaunch(NamedTuple):
    """The running launch."""

    spans: tuple[Span, ...]
    """The memory that its kernel may touch through its arguments."""
    integers: Mapping[str, int]
    """Its integer arguments by name, without constexprs."""
    alive: Callable[[], tuple[Span, ...]]
    """Returns the memory that the kernel may touch through addresses that it loaded."""
    program: functools.partial[object]
    """The kernel with its converted arguments."""
    mode: ProgramGroup | Rerun | None = None
    """How the programs run; None if one by one in plain Triton. It checks its accesses itself."""

    def reached_by(self, pointers: TensorHandle) -> tuple[Span, ...]:
        """Return the memory that the pointers may point into."""
        return self.alive() if spans.ANYWHERE in spans.origins_of(pointers) else self.spans

    def first_outside(self, pointers: TensorHandle, mask: Mask) -> int | None:
        """Return the first address of an active lane that is out of bounds, or None."""
        _, outside = spans.accessed(pointers, mask, self.reached_by(pointers))
        return int(outside.flat[0]) if outside.size else None

    def wrap(self, address: int) -> Wrap | None:
        """Return what wrapped in the offset of an out-of-bounds address, if that is the cause."""
        again = Rerun(address, self.first_outside)
        with contextlib.suppress(explanation.Ended, Exception):  # memory may have changed
            run(self, again)
        return again.wrap

    def describe(
        self, verb: str, address: int, pointers: TensorHandle, wrap: Wrap | None
    ) -> Reason:
        """Describe an access: `program (6, 4), M=70, K=24: reads b + 2816 of 2800, line 31 ...`.

        The text names the nearest of the arguments that the pointers were made from, and what
        wrapped in the address's offset, if anything did.
        """
        access = explanation.Access.now(verb)
        shown = [*self.integers.items()][: 0 if wrap else SHOWN]  # a wrap's words have its values
        integers = [f"{name}={value}" for name, value in shown]
        program = ", ".join((f"program {access.program}", *integers))
        place = "memory in a launch without tensors"
        if reached := self.reached_by(pointers):
            near = [span for span in reached if span.name in spans.origins_of(pointers)]
            place = " of ".join(spans.element(address, spans.width_of(pointers), near or reached))
        text = f"{program}: {verb} {place}, {access.place}"
        if not wrap:
            return Reason(text, (access.place,))
        why = f"since its offset wrapped: {wrap.words}, {wrap.place}"
        return Reason(f"{text}, {why}", (access.place, wrap.place))


@dataclass
class Watch:
    """The memory that the running launch may touch, and the log of a graded call's accesses."""

    inputs: tuple[Span, ...] = ()
    """The graded call's arguments; see `spans_of`."""
    backwards: bool = False
    """Run programs from the last to the first, since a kernel must not rely on their order."""
    launch: WatchedLaunch | None = None
    faults: list[Reason] = field(default_factory=list)
    """The accesses out of bounds."""
    stores: list[explanation.Store] = field(default_factory=list)
    conflicts: Conflicts | None = None
    """Receives each access, if set, to find programs that conflict."""

    def begin_call(self, tensors: dict[str, torch.Tensor], backwards: bool = False) -> None:
        """Begin a graded call with these arguments."""
        self.backwards = backwards
        self.inputs = tuple(Span(name, *extent(tensor)) for name, tensor in tensors.items())
        self.faults, self.stores, self.conflicts = [], [], None

    def check(self, verb: str, pointers: TensorHandle, mask: Mask) -> None:
        """Check the addresses of all active lanes.

        Raises:
            Failure: OUT_OF_BOUNDS, for an address outside of the launch's memory. The log keeps the
                fault too, since a solution may swallow the exception.
        """
        if self.launch is None or (address := self.launch.first_outside(pointers, mask)) is None:
            return
        wrap = self.launch.wrap(address)
        fault = self.launch.describe(verb, address, pointers, wrap)
        self.faults.append(fault)
        kind = Kind.WRAPPED if wrap else Kind.NONE
        raise Failure("OUT_OF_BOUNDS", fault.text, kind, fault.places)

    def access(self, verb: str, pointers: TensorHandle, mask: Mask, act: Act) -> Any:
        """Check an access's addresses, then make the access."""
        if self.launch and self.launch.mode:
            return self.launch.mode.access(verb, pointers, mask, act)
        self.check(verb, pointers, mask)
        return self.conflicts.access(verb, pointers, mask, act) if self.conflicts else act()


WATCH = Watch()
ACCESSES = {
    "create_masked_load": (READS, 1, 2), "create_masked_store": (WRITES, 1, 3),
    "create_atomic_rmw": (ATOMIC, 2, 4), "create_atomic_cas": (ATOMIC, 1, None),
}  # fmt: skip
"""By the builder's method: the verb, and the arguments' places of the pointers and the mask."""


def watch_memory() -> None:
    """Patch the interpreter so that `WATCH` checks each access and orders the programs."""
    spans.track()
    for name, access in ACCESSES.items():
        wrap(InterpreterBuilder, name, functools.partial(_access, *access))
    wrap(interpreter.GridExecutor, "__call__", _launch)
    wrap_each(_by_mode)


def _access(
    verb: str, at: int, mask_at: int | None, method: Operation, *args: Any, **named: Any
) -> Any:
    mask = args[mask_at] if mask_at else np.ones_like(args[at].data, bool)
    # a block pointer's mask is an array already
    lanes = mask.data if isinstance(mask, TensorHandle) else mask
    act = functools.partial(method, *args, **named)
    if verb != READS and WATCH.inputs:  # of a graded call
        act = functools.partial(_logged, explanation.kernel_place(), args[at], lanes, act)
    return WATCH.access(verb, args[at], lanes, act)


def _logged(place: Place, pointers: TensorHandle, mask: Mask, act: Act) -> Any:
    result, other = act(), np.zeros_like(pointers.data, f"i{spans.width_of(pointers)}")
    left = interpreter._interpreter.load(pointers.data, mask, other, other.dtype)
    WATCH.stores.append((place, pointers.data, mask, left))
    return result


def _by_mode(name: str, method: Operation) -> Operation:
    """Let the launch's mode do an operation, but not those that the operation itself calls."""

    @functools.wraps(method)
    def operation(*args: Any, **named: Any) -> Any:
        mode = WATCH.launch and WATCH.launch.mode
        if not mode or mode.busy or named:  # Triton 3.6 and 3.7 pass no keywords
            return method(*args, **named)
        mode.busy = True
        try:
            return mode.call(name, method, args)
        finally:
            mode.busy = False

    return operation


# --- launches -------------------------------------------------------------------------------------

_LAUNCHING = threading.Lock()
"""Lets one thread interpret at a time: the interpreter keeps a launch in its own globals."""


def _launch(_: Callable[..., None], executor: Any, *args: Any, **options: Any) -> None:
    with _LAUNCHING, launched(executor, args, options) as (launch, sizes):
        programs = list(itertools.product(*map(range, sizes)))
        if WATCH.backwards:
            programs.reverse()
        at_once = functools.partial(run, launch)
        if not WATCH.conflicts and together.play(at_once, np.array(programs), launch.spans):
            return
        for program in programs:
            interpreter.interpreter_builder.set_grid_idx(*program)
            run(launch)


def run(launch: WatchedLaunch, mode: ProgramGroup | Rerun | None = None) -> None:
    """Run the kernel's Python once, by a mode or for the program at the builder's place."""
    WATCH.launch = launch._replace(mode=mode)
    try:
        launch.program()
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error
    finally:
        WATCH.launch = launch


@contextlib.contextmanager
def launched(
    executor: Any, args: Sequence[Any], options: Mapping[str, Any]
) -> Iterator[tuple[WatchedLaunch, target.Grid]]:
    """Prepare the interpreter for a launch; yield the launch, and the sizes of its grid.

    It stands in for Triton's executor. All tensors are on the host, so nothing is copied to it.
    """
    named = {name: value for name, value in options.items() if name in executor.arg_names}
    arguments = inspect.getcallargs(executor.fn, *args, **named)
    # `grid` gets numbers, as on a GPU; the interpreter would pass tensors
    grid = executor.grid
    sizes = target.checked(grid(arguments) if callable(grid) else grid)
    for hook in executor.pre_run_hooks:
        hook(*args, **named)
    try:
        WATCH.launch = launch = _watched(executor, arguments)
        if WATCH.conflicts:
            WATCH.conflicts.begin_launch(launch.spans)
        interpreter.interpreter_builder.set_grid_dim(*sizes)
        with np.errstate(all="ignore"):  # a GPU does not warn about a NaN either
            yield launch, sizes
    finally:
        WATCH.launch = None


def _watched(executor: Any, arguments: Mapping[str, Any]) -> WatchedLaunch:
    constants, given = executor.constexprs, arguments.items()
    own = tuple(span for each in given for span in spans.spans_of(*each, WATCH.inputs))
    alive = functools.cache(functools.partial(spans.alive, own, WATCH.inputs))
    integers = {n: value for n, value in given if type(value) is int and n not in constants}
    converted = {
        name: value if name in constants else spans.label(name, interpreter._implicit_cvt(value))
        for name, value in annotated(executor.fn, arguments).items()
    }
    return WatchedLaunch(own, integers, alive, functools.partial(executor.fn, **converted))
