"""Ask for the house's masked layers on an H100 that is not there; print how often Triton compiles.

Small ops of many sizes, strides and addresses in one type, forward and backward: the number of
kernels after each of them, as JSON. None is compiled: what tells them apart is known before.
"""

import json
import sys

import torch
from triton import knobs

from common.paths import ROOT
from common.sandbox.compiled import target

sys.path.insert(0, str(ROOT / "contributors" / "house"))
SIZES = ((38, 24, 40), (1, 1, 7), (70, 33, 17), (300, 16, 16), (1100, 64, 32), (20, 24, 1500))


def called(tokens: int, width: int, inner: int, view: bool) -> None:
    """Call both layers; a view begins at an odd address, and no stride of it is 1."""
    from masked_ffn import masked_ffn
    from masked_linear import masked_linear

    def tensor(*shape: int) -> torch.Tensor:
        whole = torch.zeros(*(2 * size + 1 for size in shape), dtype=torch.float16)
        one = whole[tuple(slice(1, None, 2) for _ in shape)] if view else torch.zeros_like(whole)
        return one[tuple(slice(size) for size in shape)].requires_grad_()

    mask = torch.zeros(2 * tokens, dtype=torch.bool)[:: 2 if view else 1][:tokens]
    up, down = (inner, width), (width, inner)
    masked_linear(tensor(tokens, width), tensor(*up), tensor(*up), mask).sum().backward()
    sets = [tensor(*shape) for shape in (up, down, up) * 2]
    masked_ffn(tensor(tokens, width), *sets, mask).sum().backward()


def main() -> None:
    target.install("sm_90")
    kernels = set()

    def note(key, **_):
        kernels.add(key)
        return True  # do not compile it

    knobs.runtime.jit_cache_hook = note
    found = []
    for index, sizes in enumerate(SIZES):
        called(*sizes, view=index % 2 == 1)
        found.append(len(kernels))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
