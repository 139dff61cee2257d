"""Rotations of calls that are given, without inputs that change."""

from common.sandbox.rotation import Rotation, TimedCall


def rotation(calls, backward):
    """Return a rotation whose inputs do not change and whose results are not kept."""
    return Rotation([TimedCall(*call) for call in calls], backward)
