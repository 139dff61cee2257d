"""The requests for the times of calls, which a solution's process answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from common.wire import Arguments, Request, Struct, TensorSlot


class Limits(Struct):
    """The limits to time besides eager: a copy, and dense products if there are any."""

    copy_bytes: int
    products: tuple[tuple[int, int, int], ...]
    dtype: str


class BeginTiming(Request, tag="begin_timing"):
    """Warm up calls and keep their clock for the requests that follow."""

    calls: list[Arguments]
    """The calls, all of one shape."""
    results: Sequence[TensorSlot] = ()
    """The slots for the kept results of a call, the output's first; empty to keep none. If there
    are any, the inputs change between the calls; all calls' inputs are the same at first."""
    backward: bool = False
    """Time forward with backward instead of only forward."""
    limits: Limits | None = None
    """The limits to time besides the calls, in eager's process."""


class TakeSamples(Request, tag="take_samples"):
    """Take samples of timed callables in the given order.

    The reply has as `samples` microseconds by name; as `probes` lists of samples of the probe,
    before the first round and after each round; as `kept` the call of the last round whose results
    lie in the slots, with the shift of its inputs, None if no results are kept; and as `shifts` how
    far each call's inputs are rotated now.
    """

    clock: Literal["gpu", "host"]
    names: Sequence[str] = ()
    rounds: int = 0
    """The number of samples of each timed callable."""
    burst: int = 1
    """The maximum number of calls in a sample of host time."""
    probes: int = 0
    """The samples of the probe in each list; 0 for no list."""
    backward: bool = False


class RunCalls(Request, tag="run_calls"):
    """Make calls round after round, one on each input; the reply has `kept` and `shifts`.

    Without rounds, only wait for the GPU and, with a name, warm up the timed callable, so that the
    next request runs nothing else; the reply has as `ready` whether it can be timed.
    """

    name: str = ""
    rounds: int = 0
    renew: bool = False
    """Change the inputs before each round."""
    call: bool = True
    """Make the calls; otherwise only change the inputs."""
    wait: bool = True
    """Wait for the GPU at the end."""
    same: bool = False
    """Make all calls of the run on one input."""
    backward: bool = False
