"""The kernel configurations that the harness tunes for a solution; see docs/tuning.md."""

from __future__ import annotations

from typing import Any

import torch

from common.arena import dtype_name
from common.sandbox.session import Session
from common.wire import Reply


def tune(session: Session, choices: list[Any]) -> Reply:
    """Force configurations from now on; a kernel uses its default for any other shape.

    Args:
        session: The solution's session.
        choices: Items `[kernel, widths, dtype, tokens, configuration]`, for example
            `["linear", [1024, 4096], "bfloat16", 4096, {"block": 64}]`.

    Returns:
        As `kernels`, the name, default and search space of each kernel. As `asked`, the shapes that
        the solution has looked up since the last request, without their configurations.
    """
    kernels = tuple(getattr(session.module, "TUNED", ()))
    asked = [
        [kernel.name, [int(width) for width in widths], dtype_name(dtype), int(tokens)]
        for kernel in kernels
        for tokens, widths, dtype, *_ in kernel.asked
    ]
    for kernel in kernels:
        kernel.asked.clear()
        kernel.forced = {
            (tokens, tuple(widths), getattr(torch, dtype)): config
            for name, widths, dtype, tokens, config in choices
            if name == kernel.name
        }
    names = ("name", "default", "space")
    return {
        "kernels": [{n: getattr(kernel, n) for n in names} for kernel in kernels],
        "asked": asked,
    }
