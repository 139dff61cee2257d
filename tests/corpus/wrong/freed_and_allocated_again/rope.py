"""cos and sin are kept by the address and version of freqs, which may be freed and taken over.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import torch

tables = {}


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    key = (freqs.data_ptr(), freqs._version, freqs.shape, freqs.stride(), t.dtype)
    if key not in tables:
        tables.clear()
        tables[key] = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype)
    length = t.shape[tensor_format.index("s")]
    cos, sin = (table[:length].transpose(0, tensor_format.index("s")) for table in tables[key])
    turned, passed = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    a, b = turned.chunk(2, -1)
    return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, passed), -1)
