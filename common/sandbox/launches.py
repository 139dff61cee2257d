"""Kernel launches: their log in a graded call, and their exclusion from torch.compile's graphs."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs


class LaunchLog:
    """The launches of the latest graded call, and a launch's exception that the solution caught.

    Plain torch behind `if not x.is_cuda` or `except Exception` may answer where a kernel was meant
    to.
    """

    count = 0
    error: Exception | None = None

    def clear(self) -> None:
        """Start the log of a further call."""
        self.count, self.error = 0, None

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


# --- graphs of torch.compile ----------------------------------------------------------------------

# `torch.compiler.disable` does the same but imports torch._dynamo, which takes as long as importing
# torch.


class UncompiledMode(TorchDispatchMode):
    """A dispatch mode whose handler is never compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False; otherwise torch would wrap the handler in `torch.compiler.disable`."""
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Exclude the handler, and the functions that it calls, from graphs."""
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        if "__torch_dispatch__" in vars(cls):
            leave_out(cls.__torch_dispatch__)


def leave_out(function: Callable[..., Any], reason: str = "") -> Callable[..., Any]:
    """Exclude a function, and the functions that it calls, from graphs: a call is a graph break."""
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skip)
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)
    return function
