"""The templates refuse what does not fit, before a kernel runs, as a learner's launcher should."""

import importlib.util

import pytest
import torch

from common.paths import CONTRIBUTORS

TEMPLATE = CONTRIBUTORS / "_template"
X, W, DOWN = torch.zeros(5, 4), torch.zeros(6, 4), torch.zeros(4, 6)
MASK = torch.ones(5, dtype=torch.bool)
CALLS = {
    "rotate_half": [torch.zeros(3, 8)],
    "rope": [torch.zeros(3, 1, 2, 8), torch.zeros(3, 1, 1, 8)],
    "masked_linear": [X, W, W, MASK],
    "masked_ffn": [X, W, DOWN, W, W, DOWN, W, MASK],
}
REFUSED = [
    ("rotate_half", 0, lambda x: x[:, :7]),
    ("rope", 0, lambda t: t[..., :6]),
    ("rope", 1, lambda freqs: freqs[:2]),
    ("rope", 1, lambda freqs: freqs[..., :7]),
    *((op, -1, change) for op in ("masked_linear", "masked_ffn")
      for change in (lambda mask: 2 * mask.byte(), lambda mask: mask[:4])),
    *((op, place, change)
      for op, places in (("masked_linear", (0, 1, 2)), ("masked_ffn", (0, 1, 4)))
      for place in places
      for change in (lambda x: x[:, :3], lambda x: x[None], lambda x: x.half())),
]  # fmt: skip


@pytest.mark.parametrize(("op", "place", "change"), REFUSED)
def test_a_template_refuses_an_argument_that_does_not_fit(op, place, change):
    spec = importlib.util.spec_from_file_location(f"template_{op}", TEMPLATE / f"{op}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = [*CALLS[op]]
    arguments[place] = change(arguments[place])
    with pytest.raises(ValueError, match=r"fit|odd|bool") as refused:
        getattr(module, op)(*arguments)
    assert "\n" not in str(refused.value)
