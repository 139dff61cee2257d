"""Triton's autotuner where there is no GPU to time its configurations on."""

from __future__ import annotations

import functools
from typing import Any

from triton.runtime import autotuner


def take_the_first() -> None:
    """Have every autotuner take the first of its configurations."""
    run = autotuner.Autotuner.run

    @functools.wraps(run)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.configs = self.configs[:1]
        return run(self, *args, **kwargs)

    autotuner.Autotuner.run = patched
