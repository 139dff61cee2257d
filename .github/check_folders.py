"""Check the contributors' folders that differ from BASE: check_folders.py BASE SUMMARY.

Each folder's verdicts, their causes, and its place by modelled time are appended to the file
SUMMARY, as the commands' text and as a table. A folder that no command would take, what the main
branch draws, and a check that fails end it with 1, after all folders. It needs no package but nox.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common.folders import NO_HANDLE, is_handle, left_out
from common.solutions import discover

ROOT = Path.cwd() / "contributors"
DRAWN = ("LEADERBOARD.md", "README.md", "README.ko.md", "docs/plots")
BETWEEN_MARKERS = re.compile(r"<!-- (board|picture) -->.*?<!-- /\1 -->", re.DOTALL)


def git(*words: str) -> str:
    """Return what git prints."""
    return os.fsdecode(subprocess.run(["git", *words], check=True, capture_output=True).stdout)


def changed(base: str, *paths: str) -> list[str]:
    """Return the files that differ; a name may hold anything, and git quotes none with -z."""
    return git("diff", "--name-only", "-z", f"{base}...HEAD", "--", *paths).split("\0")[:-1]


def folders(base: str) -> list[str]:
    """Return the names of the folders that differ and are still there, without the template."""
    found = {Path(name).parts[1] for name in changed(base, "contributors")}
    there = (name for name in found if (ROOT / name).is_dir() or (ROOT / name).is_symlink())
    return sorted(name for name in there if name != "_template")


def unfit(names: list[str]) -> dict[str, str]:
    """Return why a folder is none that a command takes, by its name; also those of others."""
    return left_out(ROOT) | {name: NO_HANDLE for name in names if not is_handle(name)}


def drawn(base: str) -> list[str]:
    """Return the drawn files that differ, a README only where its board or picture does."""
    origin = git("merge-base", base, "HEAD").strip()

    def boards(text: str) -> list[str]:
        return [match[0] for match in BETWEEN_MARKERS.finditer(text)]

    return [
        name
        for name in changed(base, *DRAWN)
        if not name.startswith("README")
        or boards(git("show", f"{origin}:{name}")) != boards(git("show", f"HEAD:{name}"))
    ]


def table(found: list[dict[str, Any]], printed: list[str]) -> Iterator[str]:
    """Yield the lines of a table: what `check --json` wrote, and the places that check printed."""
    last = "to mend, or modelled on an H200 (errs by some 10%)"
    yield f"| solution | tier | passed | failed | not supported | {last} |"
    yield "|---|---|---:|---:|---:|---|"
    for summary in (each for each in found if each["kind"] == "summary"):
        name, counts = summary["solution"], ("passed", "failed", "unsupported")
        begin = f"{name} forward, modelled on an H200 (errs by some 10%): "
        words = [line.removeprefix(begin) for line in printed if line.startswith(begin)]
        if summary["tier"] == "smoke":
            words = [*map(mend, summary.get("failures", ())), summary.get("remark", "")]
        shown = "<br>".join(code(text) for text in words if text)
        numbers = " | ".join(str(summary[count]) for count in counts)
        yield f"| {code(name)} | {summary['tier']} | {numbers} | {shown} |"


def mend(failing: dict[str, Any]) -> str:
    """Return a group of failures in words: the verdict, where, for which cases, and why."""
    place, count = failing.get("place"), failing["failed"]
    parts = [
        f"{failing['verdict']} {' and '.join(failing['directions'])}, {count} of the cases",
        f"{place[0]}:{place[1]}" if place else "",
        failing.get("property", ""),
        f"likely cause: {failing['cause']}" if failing.get("cause") else "",
        f"repeat: --case {failing['case']}",
    ]
    return "; ".join(filter(None, parts))


def code(text: str) -> str:
    """Return untrusted text as code in a cell of a table."""
    return f"`{' '.join(text.replace('`', chr(39)).replace('|', chr(166)).split())}`"


def main(base: str, summary: Path) -> int:
    """Check, and return the exit code."""
    failed = False

    def tell(text: str) -> None:
        with summary.open("a", encoding="utf-8") as file:
            file.write(text)

    def session(name: str, *words: str, json_file: str = "") -> bool:
        """Run a session of nox and return whether it succeeded; of check, tell its table too."""
        command = ["python3", "-m", "nox", "-s", name, "--", *words]
        command += ["--json", json_file] if json_file else []
        tell(f"\n`nox -s {name} -- {' '.join(words)}`\n\n")
        printed = list[str]()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as ran:
            for line in ran.stdout or ():
                print(line, end="", file=sys.stderr)
                tell(f"    {line}")  # indented, Markdown takes it as it is, whatever it prints
                printed.append(line)
        if json_file and (written := Path(json_file).read_text()):
            tell("\n" + "\n".join(table(json.loads(written), printed)) + "\n")
        return ran.returncode == 0

    names = folders(base)
    if not names:
        tell("No contributor's folder is touched.\n")
    touched, reasons = {name.casefold() for name in names}, unfit(names)
    for name, reason in sorted(reasons.items()):
        if name.casefold() in touched:  # it, or the one that would hide it on some disks
            shown = name if name.isprintable() else ascii(name)
            tell(f"\nNo command takes this folder:\n\n    contributors/{shown}: {reason}\n")
            failed = True
    if names and (files := drawn(base)):
        tell("\nThe main branch draws these files; take back what is drawn here:\n\n")
        tell(f"    git checkout {base} -- {' '.join(files)}\n")
        failed = True
    solutions = discover(ROOT)
    for name in names:
        if name in reasons:
            continue
        tell(f"\n## {name}\n")
        with tempfile.NamedTemporaryFile() as file:
            if not session("check", name, json_file=file.name):
                failed = True
                continue
        for op in sorted({each.op for each in solutions if each.handle == name}):
            if session("bench", "--device", "cpu", "--op", op):
                session("leaderboard", "--op", op, "--only", name)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
