"""Faults of kernels are kept from run to run, for as long as what they rest on stays."""

from __future__ import annotations

import errno
import json
import os

import pytest
from triton.compiler import compiler as triton_compiler

from common import disk_cache, ops, solutions
from common.errors import Kind
from common.grading.compiling import Unknown
from common.grading.worker import Worker
from common.paths import ROOT
from common.sandbox.failures import judge

WRONG = {each.handle: each for each in solutions.discover(ROOT / "tests" / "corpus" / "wrong")}
OP = ops.load("rotate_half")
CASE = next(OP.cases("smoke"))


def test_the_cache_is_bounded_and_its_oldest_entries_go(monkeypatch, tmp_path):
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path)
    for age, name in enumerate(("new", "old", "oldest")):
        entry = tmp_path / "kernels" / name
        entry.mkdir(parents=True)
        (entry / "kernel.cubin").write_bytes(bytes(40_000))
        os.utime(entry, (1e9 - age, 1e9 - age))
    disk_cache.trim_caches(100_000)
    assert sorted(path.name for path in (tmp_path / "kernels").iterdir()) == ["new", "old"]


def test_nothing_is_kept_of_a_source_that_is_away(monkeypatch, tmp_path):
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path / ".cache")
    source = tmp_path / "rope.py"
    source.write_text("1")
    for away in (True, False):
        cache = disk_cache.DiskCache("kind", "rope", source.read_text)
        cache.found = {"case": "result"}
        if away:
            source.unlink()
        cache.save()
        source.write_text("1")
        kept = disk_cache.DiskCache("kind", "rope", source.read_text).found
        assert kept == ({} if away else cache.found)


def test_what_is_known_is_not_asked_again(compiler, monkeypatch, tmp_path):
    solution = WRONG["a_type_of_each_branch"]
    with compiler() as ours:
        faults = ours.faults(OP, CASE, solution)
    monkeypatch.setattr(Worker, "ask", lambda *_: pytest.fail("asked again"))
    with compiler() as ours:
        assert ours.faults(OP, CASE, solution) == faults


@pytest.mark.parametrize("text", ["", "[]", '{"key": "of other sources", "found": {"x": {}}}'])
def test_a_cache_of_other_sources_says_nothing(compiler, monkeypatch, tmp_path, text):
    solution = WRONG["a_type_of_each_branch"]
    path = tmp_path / "verdicts" / "a_type_of_each_branch-rotate_half.json"
    path.parent.mkdir()
    path.write_text(text)
    with compiler() as ours:
        faults = ours.faults(OP, CASE, solution)
    assert faults
    assert json.loads(path.read_text())["found"] == {CASE.name: [faults, {}]}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_is_no_fault_of_the_kernel(number):
    """It once made every kernel a COMPILE_ERROR, which was recorded, and kept in the cache."""
    places = {}
    exec(
        compile("def compile(error):\n    raise error\n", triton_compiler.__file__, "exec"), places
    )
    with pytest.raises(OSError, match="kernels") as caught:
        places["compile"](OSError(number, os.strerror(number), ".cache/kernels/x"))
    said = judge(caught.value)
    assert said["verdict"] == "RUNTIME_ERROR"
    assert said["kind"] == Kind.DISK
    assert said["reason"].endswith(f"written to disk: {os.strerror(number)}: .cache/kernels/x")


@pytest.mark.parametrize("kind", ["disk", ""])
def test_nothing_is_known_of_a_full_disk_and_of_a_process_that_ended(
    compiler, monkeypatch, tmp_path, kind
):
    verdict = "RUNTIME_ERROR" if kind else "CRASHED"
    reply = {"verdict": verdict, "reason": "No space left on device", "kind": kind}
    monkeypatch.setattr(Worker, "ask", lambda *_, **__: reply)
    with compiler() as ours, pytest.raises(Unknown, match="No space left"):
        ours.faults(OP, CASE, WRONG["a_type_of_each_branch"])
    assert not list(tmp_path.rglob("*.json"))


def test_a_cache_that_cannot_be_written_costs_no_command(compiler, tmp_path):
    (tmp_path / "verdicts").write_text("a file where the folder should be")
    with compiler() as ours:
        assert ours.faults(OP, CASE, WRONG["a_type_of_each_branch"])
