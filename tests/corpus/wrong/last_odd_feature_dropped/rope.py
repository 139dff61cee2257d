"""What passes through is copied in pairs, so that the last feature of an odd width is lost.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch


def rope(t, freqs):
    d, d2 = t.shape[-1], freqs.shape[-1]
    angles = freqs[: len(t)]
    a, b = t[..., :d2].chunk(2, -1)
    turned = t[..., :d2] * angles.cos().to(t.dtype)
    turned = turned + torch.cat((-b, a), -1) * angles.sin().to(t.dtype)
    pairs = (d - d2) // 2
    passed = torch.nn.functional.pad(t[..., d2 : d2 + 2 * pairs], (0, d - d2 - 2 * pairs))
    return torch.cat((turned, passed), -1)
