"""One board case at its true shape, counted in a solution's process; a request of the harness."""

from __future__ import annotations

import ctypes
import random
import zlib

from common.sandbox.counted.launches import Launches
from common.sandbox.counted.operators import Operators
from common.sandbox.failures import judge
from common.sandbox.session import Session
from common.sandbox.true_shape import board_case, true_call
from common.spec import Case
from common.wire import Reply


def count(session: Session, case: str) -> Reply:
    """Count forward and backward of the board case with this name, at its true shape.

    Returns:
        By direction the steps of its work, operators and launches in order, those of forward again
        in `backward`; with a verdict and its reason where the solution fails or does not support
        the case.
    """
    found = board_case(session, case)
    ctypes.CDLL(None).mallopt(-6, 0)  # M_PERTURB: it would touch all memory
    counted: Reply = {}
    try:
        _count(session, found, counted)
    except Exception as error:
        counted |= judge(error)
    return counted


def _count(session: Session, case: Case, counted: Reply) -> None:
    seed = zlib.crc32(case.name.encode())
    call = true_call(session, case, seed)
    steps: list[Reply] = []
    launches = Launches(random.Random(seed), steps.append)
    with launches.counting(), Operators(steps.append, call.small):
        output = call.forward()
        counted["forward"] = list(steps)
        if output.requires_grad and "backward" in case.directions:
            call.backward(output)
            counted["backward"] = steps
