"""Install the libraries that the board compares with, next to torch; print a line for each.

`nox -s peers` runs `python -m common.tools.peers [NAME...]` in its persistent environment. Each
library has a dependency group in pyproject.toml, `peers-<name>`. A library that pip has to compile
against the installed torch has a second group, `build-<name>`, with the build tools.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from common.paths import PEERS, ROOT
from common.solutions import package_of

PINNED = ("torch", "triton", "numpy")
"""Packages that keep their versions, whatever a library requires: a run belongs to its versions."""
LONGEST_REASON = 160
"""The most characters of a reason in a line."""
TRITON_ONLY = {
    "flash_attention": {
        "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE",
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
    }
}
"""The environment variables with which a library's build leaves out its CUDA kernels."""
FOLDERS = ("*/include", "*/include/cccl")
"""The header folders in the wheels of CUDA's libraries, relative to `nvidia`; libcu++'s are in the
second."""


class NotInstalled(Exception):
    """A library cannot be installed here; the message is the reason."""


def main(names: Sequence[str]) -> int:
    """Install the named libraries, or all if there are no names; print a line for each.

    Returns:
        The exit code: 1 if a named library cannot be installed, 2 if a name is unknown.
    """
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    known = [name.removeprefix("peers-").replace("-", "_") for name in groups if "peers-" in name]
    wanted = [name.replace("-", "_") for name in names]
    if unknown := sorted(set(wanted) - set(known)):
        print(f"study: no peer {', '.join(unknown)}: there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = False
    for library in wanted or known:
        print(f"{library}: ", end="", flush=True)  # before it is installed: compiling takes minutes
        try:
            print(_install(library, groups))
        except NotInstalled as error:
            failed = True
            print(f"not installed: {error}")
    return int(failed and bool(names))


def _install(library: str, groups: Mapping[str, list[str]]) -> str:
    """Install a library unless it is installed; return what became of it.

    An installed library of any version is left unchanged: a vendor's image has its own builds.

    Raises:
        NotInstalled: pip cannot install it, or it does not fit this torch.
    """
    group, result = library.replace("_", "-"), "already there"
    if not importlib.util.find_spec(package_of(library)):
        tools, settings = groups.get(f"build-{group}", []), TRITON_ONLY.get(library, {})
        if tools and not settings and not _torchs_cuda():
            raise NotInstalled("it is compiled for CUDA, and torch here is built without CUDA")
        if tools:
            _pip(library, *tools, settings={})
        isolation = ["--no-build-isolation"] * bool(tools)
        _pip(library, *isolation, *groups[f"peers-{group}"], settings=settings)
        result = "installed"
    files = sorted((PEERS / library).glob("*.py"))
    modules = ", ".join(f"common.peers.{library}.{path.stem}" for path in files)
    command = [sys.executable, "-c", f"import {modules}"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if not completed.returncode:
        return result
    return f"{result}, but does not import here: {_reason(completed.stderr)}"


def _reason(output: str) -> str:
    """Return the line of a program's output that says why it failed: pip's error, or the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ") or "fatal error:" in line]
    return [*errors[:1], *lines[-1:], "it says nothing"][0][:LONGEST_REASON]


def _pip(library: str, *arguments: str, settings: Mapping[str, str]) -> None:
    """Run `pip install` with these environment variables.

    The packages of PINNED keep their versions. Headers of another CUDA than torch's would not fit.

    Raises:
        NotInstalled: pip failed; the reason names the file with its output.
    """
    cuda = _torchs_cuda()
    lines = [f"cuda-toolkit=={cuda}.*"] * bool(cuda)
    for package in PINNED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            lines.append(f"{package}=={metadata.version(package)}")
    folder = Path(tempfile.mkdtemp(prefix="study-peers-"))
    constraints, log = folder / "constraints.txt", folder / f"{library}.log"
    constraints.write_text("\n".join(lines))
    completed = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--constraint", str(constraints), *arguments],
        env={**os.environ, **_header_path(), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if completed.returncode:
        log.write_text(completed.stdout)
        raise NotInstalled(f"{_reason(completed.stdout)} (pip's output: {log})")


def _header_path() -> dict[str, str]:
    """Return the environment variable by which g++ finds the headers in the wheels of torch's CUDA.

    It is empty without such wheels, as in a vendor's image, whose CUDA toolkit has the headers.
    """
    nvidia = importlib.util.find_spec("nvidia")
    homes = [Path(home) for home in (nvidia and nvidia.submodule_search_locations) or ()]
    headers = [str(path) for home in homes for folder in FOLDERS for path in home.glob(folder)]
    before = os.environ.get("CPLUS_INCLUDE_PATH")
    paths = os.pathsep.join([*headers, *([before] if before else [])])
    return {"CPLUS_INCLUDE_PATH": paths} if headers else {}


def _torchs_cuda() -> str | None:
    """Return the version of CUDA that torch is built with, or None for a build without CUDA."""
    import torch

    return torch.version.cuda


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # pip gets it too, and installs a library completely or not at all
        sys.exit(130)
