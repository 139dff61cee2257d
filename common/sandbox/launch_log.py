"""The log of a graded call's kernel launches, and of a launch's exception that the solution caught.

Plain torch behind `if not x.is_cuda` or `except Exception` may answer where a kernel was meant to.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from triton import knobs


class LaunchLog:
    """The launches of the latest graded call."""

    def __init__(self) -> None:
        """Start empty."""
        self.clear()

    def clear(self) -> None:
        """Start the log of a further call."""
        self.count = 0
        self.error: Exception | None = None

    def watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a launcher's `run`; an exception that an outer launcher catches is not logged."""

        @functools.wraps(run)
        def launch(*args: Any, **options: Any) -> Any:
            count, error = self.count, self.error
            try:
                result = run(*args, **options)
            except Exception as raised:
                self.error = raised
                raise
            self.count, self.error = count + (not options.get("warmup")), error
            return result

        return launch

    @contextlib.contextmanager
    def on_gpu(self) -> Iterator[None]:
        """Count the block's launches on a GPU, where nothing is wrapped since calls are timed.

        Kernels that torch.compile launches need not be counted, so that any use of it is a launch.
        """
        hooks = knobs.runtime.launch_enter_hook
        hooks.add(self._launched)
        try:
            yield
        finally:
            hooks.remove(self._launched)
            self.count += "torch._dynamo" in sys.modules

    def _launched(self, _: Any) -> None:
        self.count += 1


LOG = LaunchLog()
