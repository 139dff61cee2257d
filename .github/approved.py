"""Fail unless a maintainer has approved COMMIT of a pull request: approved.py COMMIT < REVIEWS.

REVIEWS are the pages of `gh api --paginate --slurp repos/OWNER/NAME/pulls/NUMBER/reviews`. The last
word of each reviewer counts.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

MAINTAINERS = ("OWNER", "MEMBER", "COLLABORATOR")
"""Who may approve, as GitHub names their relation to the repository."""
WORDS = ("APPROVED", "CHANGES_REQUESTED", "DISMISSED")
"""The states of a review that decide; a comment takes nothing back."""


def refusal(commit: str, reviews: Iterable[Mapping[str, Any]]) -> str:
    """Return why the commit may not be run, nothing if it may."""
    if not re.fullmatch("[0-9a-f]{40}", commit):
        return f"{commit!a} is no commit: give all 40 digits"
    last = {
        each["user"]["login"]: each
        for each in reviews
        if each["state"] in WORDS and each["author_association"] in MAINTAINERS and each["user"]
    }
    states = {(each["state"], each["commit_id"]) for each in last.values()}
    if any(state == "CHANGES_REQUESTED" for state, _ in states):
        return "a maintainer has requested changes"
    if ("APPROVED", commit) not in states:
        return f"no maintainer has approved the commit {commit}"
    return ""


if __name__ == "__main__":
    sys.exit(refusal(sys.argv[1], [each for page in json.load(sys.stdin) for each in page]) or 0)
