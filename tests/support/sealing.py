"""Seals of a process that has threads of its own."""

import sys
import threading

from common.sandbox.failures import Refused
from common.sandbox.seal import Seal


class Before:
    """The threads that were there before and have not ended: another may get the number of one."""

    def __init__(self):
        self.known = dict.fromkeys(sys._current_frames())
        self.known |= {each.ident: each for each in threading.enumerate()}

    def __contains__(self, ident):
        thread = self.known.get(ident)
        return ident in self.known and (thread is None or thread.is_alive())


def sealed(*parts):
    """Return a seal that ignores this process's own threads: a worker has none."""
    seal = Seal(parts)
    seal.threads = Before()
    return seal


def broken(seal):
    """Return what the check says; None where it finds nothing."""
    try:
        seal.check()
    except Refused as refused:
        return refused.reason
    return None
