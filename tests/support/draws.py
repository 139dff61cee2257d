"""Arguments that an op draws for a case."""

import torch


def drawn(op, case, seed=0):
    """The arguments that follow from the seed."""
    return op.draw(case, torch.Generator().manual_seed(seed))
