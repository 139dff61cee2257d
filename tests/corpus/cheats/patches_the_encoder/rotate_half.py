"""It hides the method of the encoder that json keeps, to leave the verdict out of replies.

Expected: forward=TAMPERED backward=TAMPERED
"""

import json


def _without_verdict(reply):
    return json.JSONEncoder().encode({k: v for k, v in reply.items() if k != "verdict"})


def rotate_half(x):
    json._default_encoder.encode = _without_verdict
    raise ValueError("no such width")
