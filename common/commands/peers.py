"""Install the libraries that the board compares with, next to torch; print a line for each.

`nox -s peers` runs `python -m common.commands.peers [NAME...]` in its persistent environment. Each
library has a dependency group in pyproject.toml, `peers-<name>`. A library that pip has to compile
against the installed torch has a second group, `build-<name>`, with the build tools.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from common.disk_cache import package_versions
from common.paths import PEERS, ROOT
from common.printable import complain
from common.solutions import package_of

ALONE = ("lmdeploy",)
"""Libraries without what they require, which their Triton files do not need."""
TRITON_ONLY = dict.fromkeys(
    ("FLASH_ATTENTION_SKIP_CUDA_BUILD", "FLASH_ATTENTION_FORCE_BUILD"), "TRUE"
)
"""The environment variables with which flash_attention's build leaves out its CUDA kernels."""


def main(names: Sequence[str]) -> int:
    """Install the named libraries, or all if there are no names; print a line for each.

    An installed library of any version is left unchanged: a vendor's image has its own builds.
    Return 1 if a named library cannot be installed, 2 if a name is unknown.
    """
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    known = [name.removeprefix("peers-").replace("-", "_") for name in groups if "peers-" in name]
    wanted = [name.replace("-", "_") for name in names]
    if unknown := sorted(set(wanted) - set(known)):
        complain(f"no peer {', '.join(unknown)}: there are {', '.join(known)}")
        return 2
    failed = False
    for library in wanted or known:
        there = importlib.util.find_spec(package_of(library))
        refusal = ("" if there else _install(library, groups)) or _refusal(library)
        failed = failed or bool(refusal)
        done = "already there" if there else "not installed" if refusal else "installed"
        print(f"{library}: {done}{refusal and f': {refusal}'}", flush=True)
    return int(failed and bool(names))


def _install(library: str, groups: Mapping[str, list[str]]) -> str:
    """Install a library with pip; return why it is not installed, or ""."""
    group, settings = library.replace("_", "-"), TRITON_ONLY if library == "flash_attention" else {}
    tools = groups.get(f"build-{group}", [])
    if tools and not settings and not torch.version.cuda:
        return "it is compiled for CUDA, and torch here is built without CUDA"
    isolation = ["--no-build-isolation"] * bool(tools) + ["--no-deps"] * (library in ALONE)
    if tools and not _pip(tools, {}):
        return "pip cannot install its build tools"
    installed = _pip([*isolation, *groups[f"peers-{group}"]], settings)
    return "" if installed else "pip cannot install it"


def _refusal(library: str) -> str:
    """Return why the library's peers do not import, or ""."""
    files = sorted((PEERS / library).glob("*.py"))
    modules = ", ".join(f"common.peers.{library}.{path.stem}" for path in files)
    imported = subprocess.run([sys.executable, "-c", f"import {modules}"], cwd=ROOT)
    return "it does not import here" if imported.returncode else ""


def _pip(arguments: Sequence[str], settings: Mapping[str, str]) -> bool:
    """Run `pip install` with these environment variables; return whether it succeeds.

    torch, Triton and NumPy keep their versions, whatever a library requires: a run belongs to them.
    Headers of another CUDA than torch's would not fit.
    """
    lines = [f"cuda-toolkit=={cuda}.*" for cuda in [torch.version.cuda] if cuda]
    lines += [f"{name}=={version}" for name, version in package_versions().items()]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(lines))
        constraints.flush()
        command = [sys.executable, "-m", "pip", "install", "--constraint", constraints.name]
        environment = {**os.environ, **_header_path(), **settings}
        return not subprocess.run([*command, *arguments], env=environment).returncode


def _header_path() -> dict[str, str]:
    """Return the environment variable by which g++ finds the headers in the wheels of torch's CUDA.

    It is empty without such wheels, as in a vendor's image, whose CUDA toolkit has the headers.
    """
    nvidia = importlib.util.find_spec("nvidia")
    homes = [Path(home) for home in (nvidia and nvidia.submodule_search_locations) or ()]
    folders = ("*/include", "*/include/cccl")  # libcu++'s are in the second
    headers = [str(path) for home in homes for folder in folders for path in home.glob(folder)]
    paths = filter(None, [*headers, os.environ.get("CPLUS_INCLUDE_PATH")])
    return {"CPLUS_INCLUDE_PATH": os.pathsep.join(paths)} if headers else {}


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # pip gets it too, and installs a library completely or not at all
        sys.exit(130)
