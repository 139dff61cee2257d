"""Every contributor's solution on every case of the tier, through the grader."""

import pytest


def test_solution(graded):
    failures = [f"{v.direction}: {v.verdict}: {v.reason}" for v in graded.values() if not v.fine]
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
