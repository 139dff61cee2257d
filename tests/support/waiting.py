"""Waits for what a test has set going, however busy the machine is."""

import time
from collections.abc import Callable
from typing import TypeVar

LONGEST = 300.0
"""Seconds after which a wait is given up, so that a hang ends; no test is about them."""
STEP = 0.005
"""Seconds between two looks."""
Found = TypeVar("Found")


def wait_until(look: Callable[[], Found], longest: float = LONGEST) -> Found:
    """Look until something is found, and return it; at the longest return what the last look found.

    The test asserts on it then, so that its failure shows what was there instead.
    """
    end = time.monotonic() + longest
    while not (elapsed := look()) and time.monotonic() < end:
        time.sleep(STEP)
    return elapsed
