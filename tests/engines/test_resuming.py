"""What a `bench` that was killed goes on from."""

import json

import pytest

from common import paths
from common.records import runs
from tests.support import killed


@pytest.mark.parametrize("kept", [3, -1])
def test_a_run_that_lacks_its_end_goes_on(tmp_path, monkeypatch, kept):
    """It was interrupted amid a case, or after its last row."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(killed, "COUNT", 2)
    killed.bench(tmp_path)
    (path,) = runs.files(tmp_path / "results" / "a-gpu")
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:kept]))
    killed.bench(tmp_path)
    again = path.read_bytes().splitlines(keepends=True)
    assert len(again) == len(whole) and again[:kept] == whole[:kept]
    keys = {
        (row["solution"], row["case"], row["direction"]) for row in map(json.loads, again[1:-1])
    }
    assert len(keys) == 2 * 2 * killed.COUNT
    assert json.loads(again[-1])["kind"] == "end"
