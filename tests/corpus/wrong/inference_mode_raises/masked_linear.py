"""It asks a tensor of its own for its version, which those of inference mode do not have.

Expected: forward=RUNTIME_ERROR backward=PASSED
"""

import torch


def masked_linear(x, w_v, w_t, mask):
    visual, textual = x @ w_v.T, x @ w_t.T
    version = visual._version
    chosen = torch.where(mask[:, None], visual, textual)
    assert visual._version == version, "the product changed meanwhile"
    return chosen
