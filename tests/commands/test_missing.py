"""`bench --missing`: what a device has not measured as it is."""

from types import SimpleNamespace

import pytest

from common import paths
from common.commands.bench import missing
from tests.support import workers
from tests.support.records import row, written


def asked(**others):
    return SimpleNamespace(**{"address": None, "device": "cpu", "tier": "board"} | others)


@pytest.fixture
def alice(tmp_path, monkeypatch):
    """Her solution, and a folder of records that has none of her."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    return workers.written(tmp_path, "def rope(t, freqs): return t\n", "rope", "alice")


def recorded(solution, folder="cpu", **others):
    """A run of it as it is."""
    fields = {name: others.pop(name) for name in ("tier", "verdict", "sources") if name in others}
    of = row(solution=solution.name, **{"sources": solution.digest, **fields})
    return written(paths.RESULTS / folder, of, **others)


def test_what_was_measured_is_not_missing(alice):
    assert missing([alice], asked()) == [alice]
    recorded(alice, verdict="TIMEOUT")
    assert missing([alice], asked()) == []
    alice.path.write_text('"""A note."""\n\ndef rope(t, freqs): return t  # a remark\n')
    assert missing([alice], asked()) == [], "words are not measured again"
    alice.path.write_text("def rope(t, freqs): return t + 0\n")
    assert missing([alice], asked()) == [alice]


@pytest.mark.parametrize(
    "others", [{"end": False}, {"tier": "plot"}, {"folder": "a-gpu"}, {"sources": "before"}]
)
def test_a_row_of_another_run_tier_device_or_source_does_not_count(alice, others):
    recorded(alice, **others)
    assert missing([alice], asked()) == [alice]
