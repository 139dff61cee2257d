"""Install the libraries that the board compares with, next to torch; print a line for each.

`nox -s peers` runs `python -m common.tools.peers [NAME...]` in its persistent environment. Each
library has a dependency group in pyproject.toml, `peers-<name>`. A library that pip has to compile
against the installed torch has a second group, `build-<name>`, with the build tools.
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
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from common.paths import PEERS, ROOT
from common.solutions import package_of

KEPT = ("torch", "triton", "numpy")
"""Packages that keep their versions, whatever a library requires: a run belongs to its versions."""
LONGEST_REASON = 160
"""The most characters of pip's reason in a line."""
MEND = "check the network and pip's index, then run the same command again"
MENDS = {
    "transformer_engine": "it is compiled against torch's CUDA build, with g++ and the headers of"
    " CUDA and cuDNN: install these, or start from NVIDIA's image (Dockerfile), which contains it"
}
"""What to do about a library that cannot be installed, where MEND is not enough."""

TRITON_ONLY = {
    "flash_attention": {
        "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE",
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
    }
}
"""The environment variables with which a library's build leaves out its CUDA kernels."""
FOLDERS = ("*/include", "*/include/cccl")
"""The header folders in the wheels of CUDA's libraries, relative to `nvidia`."""

Groups = dict[str, list[str]]
"""The requirements of each dependency group."""


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
            print(install(library, groups))
        except NotInstalled as error:
            failed = True
            print(f"not installed: {error}; {MENDS.get(library, MEND)}")
    return int(failed and bool(names))


def install(library: str, groups: Groups) -> str:
    """Install a library unless it is installed; return a phrase such as `installed, 0.8.4`.

    An installed library of any version is left unchanged: a vendor's image has its own builds.

    Args:
        library: The name of its folder in `common/peers`.
        groups: The dependency groups of pyproject.toml.

    Raises:
        NotInstalled: pip cannot install it, or it does not fit this torch.
    """
    package, group = package_of(library), library.replace("_", "-")
    requirements, tools = groups[f"peers-{group}"], groups.get(f"build-{group}", [])
    if importlib.util.find_spec(package):
        return f"already there{_version(package, requirements[0])}{_unusable(library)}"
    settings = TRITON_ONLY.get(library, {})
    if tools and not settings and not _torchs_cuda():
        raise NotInstalled("torch here is built without CUDA")
    log = Path(tempfile.mkdtemp(prefix="study-peers-"), f"{library}.log")
    if tools:
        _pip(log, *tools, settings={})
    _pip(log, *["--no-build-isolation"] * bool(tools), *requirements, settings=settings)
    return f"installed{_version(package, requirements[0])}{_unusable(library)}"


def reason(output: str) -> str:
    """Return the line of pip's output that says why it failed: a compiler's error before pip's."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    compiler = [line for line in lines if "fatal error:" in line]
    pip = [line for line in lines if line.startswith("ERROR: ") and "ResolutionImp" not in line]
    line = [*compiler[:1], *pip[-1:], *lines[-1:], "pip says nothing"][0]
    return line.removeprefix("ERROR: ").rstrip(".")[:LONGEST_REASON]


def _pip(log: Path, *arguments: str, settings: Mapping[str, str]) -> None:
    """Run `pip install` with these environment variables; if it fails, write its output to `log`.

    The packages of KEPT keep their versions. Headers of another CUDA than torch's would not fit.

    Raises:
        NotInstalled: pip failed.
    """
    cuda = _torchs_cuda()
    lines = [f"cuda-toolkit=={cuda}.*"] * bool(cuda)
    for package in KEPT:
        with contextlib.suppress(metadata.PackageNotFoundError):
            lines.append(f"{package}=={metadata.version(package)}")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        completed = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--constraint", file.name, *arguments],
            env={**os.environ, **_header_path(), **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if completed.returncode:
        log.write_text(completed.stdout)
        raise NotInstalled(f"{reason(completed.stdout)} (pip's output: {log})")


def _header_path() -> dict[str, str]:
    """Return the environment variable by which g++ finds the headers in the wheels of torch's CUDA.

    It is empty without such wheels, as in a vendor's image, whose CUDA toolkit has the headers.
    """
    nvidia = importlib.util.find_spec("nvidia")
    homes = [Path(home) for home in (nvidia and nvidia.submodule_search_locations) or ()]
    # CUDA 13's wheels have libcu++'s headers a folder deeper than TransformerEngine expects them
    headers = [path for home in homes for folder in FOLDERS for path in home.glob(folder)]
    before = os.environ.get("CPLUS_INCLUDE_PATH")
    paths = [*map(str, headers), *([before] if before else [])]
    return {"CPLUS_INCLUDE_PATH": os.pathsep.join(paths)} if headers else {}


def _version(package: str, requirement: str) -> str:
    """Return the version as a phrase, or "" if unknown: `, 0.8.4 (pyproject.toml names 0.8.5)`."""
    importlib.invalidate_caches()  # pip may have installed it since
    if not (distributions := metadata.packages_distributions().get(package)):
        return ""
    version, named = metadata.version(distributions[0]), requirement.rpartition("==")[2]
    return f", {version}" + (f" (pyproject.toml names {named})" if version != named else "")


def _torchs_cuda() -> str | None:
    """Return the version of CUDA that torch is built with, or None for a build without CUDA."""
    import torch

    return torch.version.cuda


def _unusable(library: str) -> str:
    """Return a phrase on the import error of a library's peers in a new process, or ""."""
    files = sorted((PEERS / library).glob("*.py"))
    modules = ", ".join(f"common.peers.{library}.{path.stem}" for path in files)
    command = [sys.executable, "-c", f"import {modules}"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = re.findall(r"\S.*", completed.stderr) or [f"exit code {completed.returncode}"]
    error = lines[-1][:LONGEST_REASON]
    return f", but does not import here: {error}" if completed.returncode else ""


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # pip gets it too, and installs a library completely or not at all
        sys.exit(130)
