"""The kernel configurations that the harness tunes for a solution; see docs/tuning.md."""

from __future__ import annotations

import torch

from common import wire
from common.arena import dtype_name
from common.sandbox.session import Session
from common.wire import Reply


def tune(session: Session, request: wire.Tune) -> Reply:
    """Force configurations from now on; a kernel uses its default for any other shape.

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
            for name, widths, dtype, tokens, config in request.choices
            if name == kernel.name
        }
    names = ("name", "default", "space")
    return {
        "kernels": [{n: getattr(kernel, n) for n in names} for kernel in kernels],
        "asked": asked,
    }
