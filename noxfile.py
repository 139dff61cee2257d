"""Sessions without logic: a session installs its dependency groups and passes its arguments on.

Most sessions run the command of `study` with the session's name; for example,
`nox -s bench -- --op rope` runs `python -m common bench --op rope`. All sessions share one
environment, `.nox/study`, so that torch is installed once. The environment that nox creates for a
session stays empty.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["test"]
nox.options.reuse_venv = "yes"
nox_session = functools.partial(
    nox.session, venv_backend="virtualenv", venv_params=["--no-seed", "--quiet"]
)

STUDY = Path(".nox", "study")
HARNESS = (
    "common", "tests", "docs", "noxfile.py", "conftest.py", ".github", "contributors/_template",
    "contributors/house",
)  # fmt: skip
"""The paths whose style `lint` checks; contributors choose their own style."""
WORKFLOWS = sorted(Path(".github", "workflows").glob("*.yml"))
GROUPS = nox.project.load_toml("pyproject.toml")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's index of builds without CUDA."""
GPU = ("/dev/nvidia*", "/dev/dxg")
"""The devices of a GPU, the second in WSL2."""
SIZES = {True: "torch without CUDA: 0.4 GB to download, 2 GB on the disk",
         False: "torch with CUDA: several GB"}  # fmt: skip


def install(session: nox.Session, *groups: str) -> str:
    """Install dependency groups into the shared environment and return the path of its Python.

    Nothing is installed again as long as neither the groups nor the installed packages change. With
    `nox --no-venv`, install nothing and return the Python on PATH. The session's processes always
    use UTF-8 and write compiled modules, since a session starts many processes.
    """
    session.env.update(PYTHONUTF8="1", PYTHONDONTWRITEBYTECODE="")
    if session.venv_backend == "none":
        return "python"
    python = str((STUDY / "bin" / "python").absolute())
    packages = [name for group in groups for name in nox.project.dependency_groups(GROUPS, group)]
    stamp = STUDY / f"installed-{'-'.join(groups)}"
    if stamp.exists() and stamp.read_text() == installed(packages):
        return python
    session.run_install(sys.executable, "-m", "virtualenv", "--quiet", STUDY, external=True)
    command = [python, "-m", "pip", "install"]
    has_torch = any(STUDY.glob("lib/python*/site-packages/torch-*"))
    if not has_torch and any(name.startswith("torch=") for name in packages):
        without = not has_gpu() and not is_configured(python)
        command += ["--extra-index-url", CPU_INDEX] * without
        session.log(f"installing {SIZES[without or not has_gpu()]}, into {STUDY}")
    else:
        command.append("--quiet")
    session.run_install(*command, *packages, external=True)
    stamp.write_text(installed(packages))
    return python


def installed(packages: list[str]) -> str:
    """Return the packages, and all that are installed; virtualenv itself rewrites their folder."""
    found = sorted(path.name for path in STUDY.glob("lib/python*/site-packages/*.dist-info"))
    return f"{packages} {found}"


def has_gpu() -> bool:
    """Return whether there may be a GPU of NVIDIA."""
    devices = (path for pattern in GPU for path in Path("/").glob(pattern[1:]))
    return bool(shutil.which("nvidia-smi")) or any(devices)


def is_configured(python: str) -> bool:
    """Return whether the user has told pip where it finds packages."""
    command = (python, "-m", "pip", "config", "list")
    listed = subprocess.run(command, capture_output=True, text=True).stdout
    return any(word in listed for word in ("index", "find-links", "proxy"))


def study(session: nox.Session, group: str = "run") -> None:
    """Install the dependency group and run the command of `study` that has the session's name."""
    command = (install(session, group), "-m", "common", session.name, *session.posargs)
    session.run(*command, external=True, interrupt_timeout=20, terminate_timeout=20)


def pytest(session: nox.Session, *arguments: str, groups: tuple[str, ...] = ("test",)) -> None:
    """Install the dependency groups and run pytest with the arguments and the session's own."""
    python = install(session, *groups)
    session.run(python, "-m", "pytest", *arguments, *session.posargs, external=True)


def several_gpus() -> bool:
    """Return whether several GPUs are visible; torch may not be installed yet."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    paths = Path("/dev").glob("nvidia[0-9]*") if listed is None else listed.split(",")
    return len([*paths]) > 1


@nox_session
def test(session: nox.Session) -> None:
    """Run every solution on the smoke cases, and the harness's quick tests."""
    pytest(session, "-m", "not slow")


@nox_session
def harness(session: nox.Session) -> None:
    """Run the slow tests of the harness: the corpora, the page in a browser, the documents."""
    pytest(session, "-m", "slow", "--ignore=tests/engines/test_ray.py")


@nox_session
def cluster(session: nox.Session) -> None:
    """Test the Ray engine on a cluster of simulated nodes."""
    pytest(session, "tests/engines/test_ray.py", groups=("test", "ray"))


@nox_session
def bench(session: nox.Session) -> None:
    """Grade and time every solution on the board's cases, or continue an interrupted run."""
    words = {word.partition("=")[0] for word in session.posargs}
    study(session, "ray" if several_gpus() or "--address" in words else "run")


@nox_session
def leaderboard(session: nox.Session) -> None:
    """Show the leaderboard, drawn from bench's records."""
    study(session, "board")


@nox_session
def export(session: nox.Session) -> None:
    """Write solutions as a Python package: nox -s export -- HANDLE/FILE --to DIR."""
    study(session, "board")


@nox.session(venv_backend="none")
def new(session: nox.Session) -> None:
    """Write a contributor's first file of an op: nox -s new -- HANDLE OP."""
    session.run(sys.executable, "-m", "common", "new", *session.posargs, external=True)


@nox.session(name="list", venv_backend="none")
def list_(session: nox.Session) -> None:
    """List every solution with its note, and which libraries are installed."""
    python = STUDY / "bin" / "python"
    command = (python if python.exists() else sys.executable, "-m", "common", "list")
    session.run(*map(str, command), *session.posargs, external=True)


@nox_session
def check(session: nox.Session) -> None:
    """Grade and measure one folder and report its place on the board: nox -s check -- HANDLE."""
    study(session)


@nox_session
def compile(session: nox.Session) -> None:
    """Compile every solution's kernels for several GPUs, and show registers and instructions."""
    study(session)


@nox_session
def profile(session: nox.Session) -> None:
    """Report a solution's bottleneck: memory, arithmetic or launches: nox -s profile -- HANDLE."""
    study(session)


@nox_session
def tune(session: nox.Session) -> None:
    """Find and save a folder's fastest configurations on this GPU: nox -s tune -- HANDLE."""
    study(session)


@nox_session
def sanitize(session: nox.Session) -> None:
    """Check smoke cases by NVIDIA's compute-sanitizer, on a GPU."""
    study(session)


@nox_session
def peers(session: nox.Session) -> None:
    """Install the peers' libraries, all or by name: nox -s peers -- quack."""
    module = (install(session, "run"), "-m", "common.commands.peers")
    session.run(*module, *session.posargs, external=True)


@nox_session
def lint(session: nox.Session) -> None:
    """Check the style of the harness's files, the types, and the schema of the workflows."""
    python = install(session, "lint")
    session.run(python, "-m", "ruff", "check", *HARNESS, external=True)
    session.run(python, "-m", "ruff", "format", "--check", *HARNESS, external=True)
    session.run(python, "-m", "mypy", external=True)
    schema = ("-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows")
    session.run(python, *schema, *map(str, WORKFLOWS), external=True)


@nox_session
def format(session: nox.Session) -> None:
    """Format the harness's files, or contributors' folders: nox -s format -- HANDLE."""
    python = install(session, "lint")
    folders = [f"contributors/{handle}" for handle in session.posargs] or HARNESS
    session.run(python, "-m", "ruff", "check", "--fix-only", *folders, external=True)
    session.run(python, "-m", "ruff", "format", *folders, external=True)
