"""The two products are multiplied by the mask and added, so that 0 times infinity is NaN.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
Cause: the products are multiplied by the mask: 0 times infinity is NaN
"""


def masked_linear(x, w_v, w_t, mask):
    chosen = mask[:, None].to(x.dtype)
    return x @ w_v.T * chosen + x @ w_t.T * (1 - chosen)
