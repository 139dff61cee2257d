"""The indices of the visual tokens are kept by the mask's id and version, as if ids were unique.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

places = {}


def _places(mask):
    if mask.is_inference():
        return mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
    key = (id(mask), mask._version, len(mask))
    if key not in places:
        places[key] = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
    return places[key]


def masked_linear(x, w_v, w_t, mask):
    visual, textual = _places(mask)
    y = x.new_zeros(len(x), len(w_v))
    y = y.index_copy(0, visual, x[visual] @ w_v.T)
    return y.index_copy(0, textual, x[textual] @ w_t.T)
