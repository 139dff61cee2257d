"""The import of torch, in the harness and in the base that fork servers are forked from."""

from __future__ import annotations

import gc


def import_torch() -> None:
    """Import torch, and what the first gradient would import otherwise, for 0.4 s."""
    gc.disable()  # nothing of torch is garbage: looking for it takes a tenth of the time
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    gc.freeze()
    gc.enable()
