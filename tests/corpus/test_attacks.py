"""The attacks of tests/corpus/cheats find the names of the harness that they look for."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator

import pytest

from common.grading.worker import Died
from tests.support import corpora
from tests.support.workers import ask, workers

CHEATS = {cheat.handle: cheat.path.read_text() for cheat in corpora.CHEATS}


def replaced(tree: ast.Module) -> Iterator[str]:
    """Yield our names that a source assigns to: `common.grading.tolerance.check_values`."""
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    modules = {
        alias.name: f"{node.module}.{alias.name}"
        for node in imports
        if (node.module or "").partition(".")[0] == "common"
        for alias in node.names
    }
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else []:
            first, _, name = ast.unparse(target).partition(".")
            if first in modules and name:
                yield f"{modules[first]}.{name}"


@pytest.mark.parametrize(
    "handle", ["patches_the_clock", "patches_the_comparison", "patches_the_writer"]
)
def test_what_an_attack_replaces_is_there(handle):
    """Its verdict is that of a harmless attack, also where it replaces nothing."""
    names = [*replaced(ast.parse(CHEATS[handle]))]
    assert names and all(callable(pkgutil.resolve_name(name)) for name in names)


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("patches_its_caller", "common.sandbox.poison.fill was replaced"),
        ("orders_its_watch_anew", "common.sandbox.interpreter.bounds.WATCH was replaced"),
        ("replaces_the_seal", "a mode was left behind"),
        ("hides_the_loads", "InterpreterBuilder.create_masked_load was replaced"),
        ("loads_unwatched", "InterpreterBuilder.create_masked_load was replaced"),
    ],
)
@pytest.mark.slow
def test_an_attack_is_refused_for_what_it_does(fork_server, tmp_path, attack, reason):
    with workers(fork_server, tmp_path) as start:
        reply, _ = ask(start(CHEATS[attack], "rotate_half"))
    assert reply == {"verdict": "TAMPERED", "reason": reason}


def test_a_token_that_was_found_makes_one_reply_at_most(fork_server, tmp_path):
    """The harness may take it for the answer; the answer that follows it gives it away.

    That is in the same request where both arrive together, in the next one otherwise.
    """
    with workers(fork_server, tmp_path) as start:
        worker = start(CHEATS["forges_with_the_token"], "rotate_half")
        with pytest.raises(Died, match="the process wrote something other than a reply") as death:
            _ = [ask(worker) for _ in range(2)]
    assert death.value.verdict == "TAMPERED"
