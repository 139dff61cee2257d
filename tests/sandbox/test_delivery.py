"""A result that changes after it was returned is named by its likely cause."""

from types import SimpleNamespace

import pytest
import torch

from common import wire
from common.arena import slot_like
from common.sandbox import backend
from common.sandbox.session import Call, Session
from common.verdicts import Failure

TARGET = torch.zeros(4)
SLOT = slot_like(TARGET, 0)


def deliver(result, setting=""):
    call = Call({}, wire.Forward(None, {"output": SLOT}, setting=setting), {"output": result})
    session = SimpleNamespace(calls={"first": call}, tensor=lambda slot: TARGET)
    return Session.deliver(session, wire.Deliver("first", "output", SLOT))


@pytest.mark.parametrize(
    ("setting", "verdict", "reason"),
    [
        ("", "TAMPERED", "a result changed after it was returned"),
        ("stream", "NONDETERMINISTIC", "work was left on another stream than the caller's"),
    ],
)
def test_a_late_write_is_named(monkeypatch, setting, verdict, reason):
    """On a stream of the caller's own, a kernel on the default stream writes late by mistake."""
    result = torch.zeros(4)
    monkeypatch.setattr(backend, "another_stream", torch.no_grad)
    monkeypatch.setattr(backend, "synchronize", lambda: result.fill_(1))
    with pytest.raises(Failure) as late:
        deliver(result, setting)
    assert (late.value.verdict, late.value.reason) == (verdict, reason)


def test_a_negation_that_torch_has_not_made_yet_is_delivered(monkeypatch):
    monkeypatch.setattr(backend, "synchronize", lambda: None)
    assert deliver(torch._neg_view(torch.ones(4))) == {"shape": [4], "dtype": "float32"}
    assert TARGET.tolist() == [-1] * 4
