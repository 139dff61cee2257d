"""Sessions, no logic: each installs its dependency group and hands its arguments on to `study`."""

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["test"]
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
# One environment serves every session: each would hold its own copy of torch otherwise.
nox.sessions.SessionRunner.envdir = property(lambda self: ".nox/study")

GROUPS = nox.project.load_toml("pyproject.toml")


def install(session: nox.Session, group: str) -> None:
    session.install(*nox.project.dependency_groups(GROUPS, group))


def study(session: nox.Session, group: str = "run") -> None:
    install(session, group)
    command = ("python", "-m", "common", session.name)
    session.run(*command, *session.posargs, interrupt_timeout=20, terminate_timeout=20)


@nox.session
def test(session: nox.Session) -> None:
    """Run the tests: the harness's own, and every solution on the smoke cases."""
    install(session, "test")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Grade and time every solution on the board's cases; goes on where it was interrupted."""
    study(session)


@nox.session
def leaderboard(session: nox.Session) -> None:
    """Show the leaderboard from what bench recorded."""
    study(session, "board")


@nox.session
def new(session: nox.Session) -> None:
    """Write a solution's folder from the template: nox -s new -- HANDLE OP."""
    study(session, "board")


@nox.session
def tune(session: nox.Session) -> None:
    """Search a folder's configurations on this GPU, for it to read: nox -s tune -- HANDLE."""
    study(session)


@nox.session
def check(session: nox.Session) -> None:
    """Grade and measure one folder, and say where it would stand: nox -s check -- HANDLE."""
    study(session)


@nox.session
def profile(session: nox.Session) -> None:
    """Say what binds a solution, memory, arithmetic or launching: nox -s profile -- HANDLE."""
    study(session)


@nox.session
def sanitize(session: nox.Session) -> None:
    """Run compute-sanitizer over the smoke cases on a GPU, or anywhere --tool triton-viz."""
    symbolic = any("triton-viz" in word for word in session.posargs)
    study(session, "sanitizer" if symbolic else "run")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
