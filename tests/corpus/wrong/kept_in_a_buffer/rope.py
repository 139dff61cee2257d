"""A module's buffers hold cos and sin of the same angles, made in the dtype of the first call.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import torch


class Rotary(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("angles", "cos", "sin"):
            self.register_buffer(name, torch.empty(0, dtype=torch.float32), persistent=False)

    def forward(self, t, freqs):
        if self.angles.device != freqs.device or not torch.equal(self.angles, freqs):
            self.angles = freqs.clone()
            self.cos, self.sin = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype)
        cos, sin = self.cos[: len(t)].to(t.dtype), self.sin[: len(t)].to(t.dtype)
        turned, passed = t.split((freqs.shape[-1], t.shape[-1] - freqs.shape[-1]), -1)
        a, b = turned.chunk(2, -1)
        return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, passed), -1)


rotary = Rotary()


def rope(t, freqs):
    with torch.inference_mode(False):
        return rotary(t, freqs)
