"""It patches json.dumps to leave the verdict out of each reply of its process.

Expected: forward=TAMPERED backward=TAMPERED
"""

import json

dumps = json.dumps
json.dumps = lambda reply, **how: dumps({k: v for k, v in reply.items() if k != "verdict"}, **how)


def rotate_half(x):
    raise RuntimeError("nobody shall know")
