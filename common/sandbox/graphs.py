"""Exclusion of the harness's modes and of kernel launches from torch.compile's graphs.

`torch.compiler.disable` does the same but imports torch._dynamo, which takes as long as importing
torch.
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
