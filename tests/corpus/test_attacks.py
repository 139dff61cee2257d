"""The attacks of tests/corpus/cheats are refused for what they do."""

import pytest

from common.grading import tolerance
from common.grading.worker import NO_REPLY
from tests.support import corpora
from tests.support.workers import ask, workers

CHEATS = {cheat.handle: cheat.path.read_text() for cheat in corpora.CHEATS}


def test_what_the_attack_on_the_comparison_replaces_is_there():
    """Its verdict is that of a harmless attack, also where it replaces nothing."""
    assert "tolerance.check_values = " in CHEATS["patches_the_comparison"]
    assert callable(tolerance.check_values)


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("patches_its_caller", "common.sandbox.poison.fill was replaced"),
        ("replaces_the_seal", "a mode was left behind"),
        ("loads_unwatched", "InterpreterBuilder.create_masked_load was replaced"),
    ],
)
@pytest.mark.slow
def test_an_attack_is_refused_for_what_it_does(fork_server, tmp_path, attack, reason):
    with workers(fork_server, tmp_path) as start:
        reply, _ = ask(start(CHEATS[attack], "rotate_half"))
    assert reply == {"verdict": "TAMPERED", "reason": reason}


def test_a_token_that_was_found_makes_one_reply_at_most(fork_server, tmp_path):
    """The true answer gives it away, in the next request if the two do not arrive together."""
    with workers(fork_server, tmp_path) as start:
        worker = start(CHEATS["forges_with_the_token"], "rotate_half")
        replies = [ask(worker)[0] for _ in range(2)]
    refused = [reply for reply in replies if "verdict" in reply]
    assert {reply["verdict"] for reply in refused} == {"TAMPERED"}
    assert all(NO_REPLY in reply["reason"] for reply in refused)
