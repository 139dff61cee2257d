"""Made-up rows of cases that plots are drawn of."""

from msgspec.structs import replace

from common.ops._masked import MaskedCase
from common.ops.rope import RopeCase
from tests.support import boards
from tests.support.boards import summary


def row(case, solution="alice/rope", us=10.0, direction="forward", **fields):
    """A timed row: `us` of the solution; a copy takes 4, dense products 6, backward alone 3."""
    gpu = {"solution": us, "eager": 20.0, "copy": 4.0}
    if direction == "backward":
        gpu["backward"] = 3.0
    if "masked" in (op := fields.get("op", "rope")):
        gpu["dense"] = 6.0
    host = {"solution": us, "eager": 20.0}
    if direction == "forward":
        host["no_grad"] = us / 2
    gpu, host = ({name: summary(each) for name, each in of.items()} for of in (gpu, host))
    plain = boards.row(
        solution, op=op, case=case.name, params=case.params, direction=direction, bytes=80_000,
        flops=100, tier="plot", gpu=gpu, host=host,
    )  # fmt: skip
    return replace(plain, **fields)


def rope(s, b, h, d, d2=None, **fields):
    return RopeCase(s=s, b=b, h=h, d=d, d2=d2 or d, **fields)


def bandwidth(length):
    return rope(length, 1, 8, 256, angles="model")


def length(value):
    return rope(value, 16, 10, 512, 256)


def masked(tokens, *widths):
    return MaskedCase(tokens=tokens, widths=widths, dtype="bfloat16")


def failed(case, solution, **fields):
    return row(case, solution, **{"gpu": {}, "host": {}, "verdict": "TIMEOUT"} | fields)
