"""Every contributor's solution on every case of the tier, through the grader."""

import pytest


def test_solution(graded):
    """A case that a solution does not support is skipped with its reason, and so counted apart."""
    failures = [f"{v.direction}: {v.verdict}: {v.reason}" for v in graded.values() if not v.fine]
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
    if all(verdict.verdict == "UNSUPPORTED" for verdict in graded.values()):
        pytest.skip(f"not supported: {next(iter(graded.values())).reason}")
