"""Fixed small work that the clock times between a run's turns, to see who else is at work."""

from __future__ import annotations

import torch

from common.sandbox import contestants, memory
from common.sandbox.clock import Contestant, at_once, gpu_time, host_time
from common.sandbox.contestants import Run
from common.spec import ByClock

BYTES = 128 << 20
BURST = 30
WARM_UP_CALLS = 5


class Probes:
    """Fixed small work, whose time shows whether the machine is disturbed."""

    def __init__(self) -> None:
        """Warm up."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        little = torch.zeros(8, device=device)
        self._host: Run = lambda: little + 1
        _warm_up(self._host)
        if device == "cuda":
            self._gpu = Contestant(at_once(contestants.copy(BYTES)))
            self._flush = memory.twice_the_l2()
            _warm_up(self._gpu.ready())

    def take(self, clock: ByClock, rounds: int) -> list[float]:
        """Return microseconds of a copy by the GPU's clock, or of a launch by the host's."""
        if clock == "gpu":
            return [gpu_time(self._gpu, self._flush) for _ in range(rounds)]
        return [host_time(self._host, BURST, grad=True) for _ in range(rounds)]


def _warm_up(run: Run) -> None:
    for _ in range(WARM_UP_CALLS):
        run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
