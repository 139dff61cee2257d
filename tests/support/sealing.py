"""Seals of a process that has threads of its own."""

import sys
import threading

from common.sandbox.seal import Seal


def sealed(*owners):
    """Return a seal that ignores this process's own threads: a worker has none.

    A thread that begins later may have the number of one that has ended.
    """
    seal, before = Seal.of(owners), {*sys._current_frames()}
    known = {each.ident: each for each in threading.enumerate()}

    def is_ours(number):
        return number in before and (number not in known or known[number].is_alive())

    frames = sys._current_frames
    return seal._replace(frames=lambda: {k: v for k, v in frames().items() if not is_ours(k)})
