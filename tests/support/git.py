"""git in a repository of a test's own, whatever the developer has told git."""

import os
import subprocess
from pathlib import Path

SETTINGS = {
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
}  # fmt: skip


def environment(**others: str) -> dict[str, str]:
    """Return the environment of a command that calls git; a hook of git's names a repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | SETTINGS | others


def git(folder: Path, *words: str) -> None:
    """Run git in this folder."""
    ran = subprocess.run(["git", *words], cwd=folder, env=environment(), capture_output=True)
    assert ran.returncode == 0, ran.stderr
