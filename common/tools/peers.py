"""The libraries that the board compares with, installed beside torch: a line for each.

`nox -s peers` runs `python -m common.tools.peers [NAME...]` in the Python that it keeps. Each
library has a dependency group in pyproject.toml, `peers-<name>`. One that pip has to compile
against this very torch has a second group, `build-<name>`: the tools to compile it with.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from common.paths import PEERS, ROOT
from common.solutions import package_of

KEPT = ("torch", "triton", "numpy")
"""Packages that stay as they are, whatever a library asks for: a run is one of their versions."""
LONGEST_REASON = 160
"""Characters of pip's reason that a line shows."""
MEND = "look at the network and at pip's index, then run the same command again"
MENDS = {
    "transformer_engine": "it is compiled against torch's CUDA build, with g++ and the headers of"
    " CUDA and cuDNN: take these, or start from NVIDIA's image (Dockerfile), which contains it"
}
"""What to do about a library that cannot be installed, where MEND is not enough."""

TRITON_ALONE = {
    "flash_attention": {
        "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE",
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
    }
}
"""What a library's build reads from its environment to leave out what it compiles with CUDA."""
FOLDERS = ("*/include", "*/include/cccl")
"""The folders of headers in the wheels of CUDA's libraries, below `nvidia`."""

Groups = dict[str, list[str]]
"""The requirements of each dependency group."""


class NotInstalled(Exception):
    """A library cannot be installed here, and the reason."""


def main(names: Sequence[str]) -> int:
    """Install the libraries with these names, all without names, and print a line for each.

    Returns:
        The exit code: 1 if a named library cannot be installed, 2 if there is none of that name.
    """
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    known = [name.removeprefix("peers-").replace("-", "_") for name in groups if "peers-" in name]
    wanted = [name.replace("-", "_") for name in names]
    if unknown := sorted(set(wanted) - set(known)):
        print(f"study: no peer {', '.join(unknown)}: there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = False
    for library in wanted or known:
        print(f"{library}: ", end="", flush=True)  # first: compiling takes minutes
        try:
            print(install(library, groups))
        except NotInstalled as error:
            failed = True
            print(f"not installed: {error}; {MENDS.get(library, MEND)}")
    return int(failed and bool(names))


def install(library: str, groups: Groups) -> str:
    """Install a library unless it is there, and return in words what was done.

    What is there stays as it is, in whatever version: a vendor's image brings builds of its own.

    Args:
        library: The name of its folder in `common/peers`.
        groups: The dependency groups of pyproject.toml.

    Raises:
        NotInstalled: pip cannot install it, or it does not fit this torch.
    """
    package, group = package_of(library), library.replace("_", "-")
    wanted, tools = groups[f"peers-{group}"], groups.get(f"build-{group}", [])
    if importlib.util.find_spec(package):
        return f"already there{_version(package, wanted[0])}{_unusable(library)}"
    settings = TRITON_ALONE.get(library, {})
    if tools and not settings and not _torchs_cuda():
        raise NotInstalled("torch here is built without CUDA")
    log = Path(tempfile.mkdtemp(prefix="study-peers-"), f"{library}.log")
    if tools:
        _pip(log, *tools)
    _pip(log, *["--no-build-isolation"] * bool(tools), *wanted, settings=settings)
    return f"installed{_version(package, wanted[0])}{_unusable(library)}"


def constraints() -> list[str]:
    """Return pip's constraints: the installed versions of KEPT, and the CUDA of torch's build.

    For example `torch==2.13.0`, `triton==3.7.1`, `numpy==2.4.6` and `cuda-toolkit==13.0.*`: headers
    of another version than torch's would not fit it.
    """
    cuda = _torchs_cuda()
    lines = [f"cuda-toolkit=={cuda}.*"] if cuda else []
    for package in KEPT:
        with contextlib.suppress(metadata.PackageNotFoundError):
            lines.append(f"{package}=={metadata.version(package)}")
    return lines


def reason(output: str) -> str:
    """Return the line of pip's output that says why it failed, shortened.

    The compiler's first error goes before the last line of a build, and that before pip's own. Of a
    conflict both sides are named: `x 1 depends on torch==2.5 and The user requested (constraint)
    torch==2.13.0`.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    compiler = [line for line in lines if "fatal error:" in line]
    build = [lines[at - 1] for at, line in enumerate(lines) if at and line == "[end of output]"]
    pip = [line for line in lines if line.startswith("ERROR: ") and "ResolutionImp" not in line]
    conflict = [
        " and ".join(lines[at + 1 : at + 3])
        for at, line in enumerate(lines)
        if line == "The conflict is caused by:"
    ]
    found = [*compiler[:1], *build[-1:], *conflict, *pip[-1:], *lines[-1:], "pip says nothing"]
    line = found[0].removeprefix("ERROR: ").rstrip(".")
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 1]}…"


def _pip(log: Path, *arguments: str, settings: dict[str, str] | None = None) -> None:
    """Run `pip install` with these settings in its environment, and all of its output in a file.

    Raises:
        NotInstalled: It failed.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints()))
        file.flush()
        ran = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--constraint", file.name, *arguments],
            env=os.environ | _header_path() | (settings or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if ran.returncode:
        log.write_text(ran.stdout)
        raise NotInstalled(f"{reason(ran.stdout)} (pip's output: {log})")


def _header_path() -> dict[str, str]:
    """Return where g++ finds the headers that came with torch's CUDA build, as an environment.

    It is empty where torch did not bring them, as in a vendor's image, whose toolkit has them.
    """
    nvidia = importlib.util.find_spec("nvidia")
    homes = [Path(home) for home in (nvidia and nvidia.submodule_search_locations) or ()]
    # CUDA 13's wheels keep those of libcu++ a folder deeper than TransformerEngine looks for them
    found = [path for home in homes for folder in FOLDERS for path in home.glob(folder)]
    before = os.environ.get("CPLUS_INCLUDE_PATH")
    paths = [*map(str, found), *([before] if before else [])]
    return {"CPLUS_INCLUDE_PATH": os.pathsep.join(paths)} if found else {}


def _version(package: str, requirement: str) -> str:
    """Return the version in words, "" if unknown: `, 0.8.4 (pyproject.toml names 0.8.5)`."""
    importlib.invalidate_caches()  # pip may have installed it since
    owners = metadata.packages_distributions().get(package)
    if not owners:
        return ""
    version, named = metadata.version(owners[0]), requirement.rpartition("==")[2]
    return f", {version}" + (f" (pyproject.toml names {named})" if version != named else "")


def _torchs_cuda() -> str | None:
    """Return the version of CUDA that torch is built with, None if it is built without."""
    import torch

    return torch.version.cuda


def _unusable(library: str) -> str:
    """Return words on a library that a fresh Python's peers cannot import, "" if they can."""
    files = sorted((PEERS / library).glob("*.py"))
    modules = ", ".join(f"common.peers.{library}.{path.stem}" for path in files)
    command = [sys.executable, "-c", f"import {modules}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = re.findall(r"\S.*", ran.stderr) or [f"exit code {ran.returncode}"]
    return f", but does not import here: {lines[-1][:LONGEST_REASON]}" if ran.returncode else ""


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # pip has got it too, and installs a library whole or not at all
        sys.exit(130)
