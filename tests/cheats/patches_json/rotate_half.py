"""Whatever its process wants to say of it is changed to praise.

Expected: forward=TAMPERED backward=TAMPERED
"""

import json

dumps = json.dumps
json.dumps = lambda reply, **how: dumps({k: v for k, v in reply.items() if k != "verdict"}, **how)


def rotate_half(x):
    raise RuntimeError("nobody shall know")
