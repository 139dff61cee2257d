"""Check out the contributors' folders of a pull request of origin: take_pull.py NUMBER COMMIT.

Nothing else of the pull request is used. The handles are printed, separated by commas; a folder
that no command takes is named on stderr. It needs no package but git.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common.folders import left_out
from common.solutions import discover


def git(*words: str) -> str:
    """Return what git prints; a failure, which git explains, ends the script."""
    ran = subprocess.run(["git", "--literal-pathspecs", *words], stdout=subprocess.PIPE)
    return os.fsdecode(ran.stdout) if ran.returncode == 0 else sys.exit(ran.returncode)


def main(number: str, commit: str) -> None:
    """Check out the folders, unless the pull request is at another commit."""
    git("fetch", "--quiet", "origin", f"pull/{number}/head")
    head = git("rev-parse", "FETCH_HEAD").strip()
    if head != commit:
        sys.exit(f"pull request {number} is at {head}, not at {commit}: look at it again")
    changed = git("diff", "--name-only", "-z", f"HEAD...{head}", "--", "contributors/").split("\0")
    parts = [Path(name).parts[1:] for name in changed[:-1]]
    names = sorted({part[0] for part in parts if len(part) > 1 and part[0][0] not in "_."})
    folders = [f"contributors/{name}" for name in names]
    if folders and (own := git("status", "--porcelain", "--", *folders)):
        sys.exit(f"pull request {number} has a folder with changes here: {own.strip()}")
    if folders:
        git("restore", "--worktree", f"--source={head}", "--", *folders)
    root = Path.cwd() / "contributors"
    handles, reasons = {solution.handle for solution in discover(root)}, left_out(root)
    for name in names:
        if name not in handles:
            reason = reasons.get(name, "it has no solution")
            print(f"contributors/{name} is left out: {reason}", file=sys.stderr)
    if not (taken := [name for name in names if name in handles]):
        sys.exit(f"pull request {number} has no contributor's folder to measure")
    print(",".join(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
