"""What torch.compile leaves alone in a solution's process: the harness's modes, and launches.

`torch.compiler.disable` does the same and imports torch._dynamo, which takes as long as torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)
from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):
    """A mode whose handler is never compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would wrap the handler in `torch.compiler.disable`."""
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Leave the handler, and what it calls, out of graphs."""
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        if "__torch_dispatch__" in vars(cls):
            leave_out(cls.__torch_dispatch__)


def leave_out(function: Callable[..., Any], reason: str = "") -> Callable[..., Any]:
    """Have a function, and all that it calls, run as plain Python; a graph that calls it breaks."""
    whole = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, whole)
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)
    return function
