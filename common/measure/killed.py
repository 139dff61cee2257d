"""A solution whose process was killed while it was timed, which is timed once more alone."""

from __future__ import annotations

from collections.abc import Callable

from common.errors import ALONE, was_killed
from common.grading.memory import Room
from common.grading.worker import Worker
from common.measure.timed_process import Failed
from common.wire import Reply


def time_unkilled(attempt: Callable[[], Reply], worker: Worker, room: Room) -> Reply:
    """Return the times; where a SIGKILL of unknown origin ended the process, those of a new one.

    Meanwhile there is no process but this one and eager's, which starts anew too.

    Raises:
        Failed: The solution failed; CRASHED, where its process was killed alone too.
    """
    try:
        return attempt()
    except Failed as failed:
        if failed.verdict != "CRASHED" or not was_killed(failed.reason):
            raise
    with room.alone(worker):
        try:
            return attempt()
        except Failed as failed:
            if was_killed(failed.reason):
                raise Failed(failed.verdict, f"{failed.reason}, {ALONE}") from None
            raise
