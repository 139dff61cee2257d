"""Results are kept from run to run, for as long as what they rest on stays."""

import errno
import os
import time

import pytest
from triton.compiler import compiler as triton_compiler

from common import disk_cache, printable
from common.disk_cache import DiskCache
from common.errors import Kind
from common.sandbox.failures import judge


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The folder of all caches, beside the source on which the results rest."""
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path / ".cache")
    (tmp_path / "rope.py").write_text("1")
    return tmp_path


def opened(folder):
    return DiskCache("kind", "alice/rope", (folder / "rope.py").read_text)


def saved(folder):
    cache = opened(folder)
    cache.found = {"case": ["result", {}]}
    cache.save()
    return folder / ".cache" / "kind" / "alice-rope.json"


def test_results_are_kept_until_their_source_changes(folder):
    saved(folder)
    assert opened(folder).found == {"case": ["result", {}]}
    (folder / "rope.py").write_text("2")
    assert opened(folder).found == {}


@pytest.mark.parametrize("text", ["", "[]", '{"key": "of other sources", "found": {"x": {}}}'])
def test_a_file_of_another_form_says_nothing(folder, text):
    saved(folder).write_text(text)
    assert opened(folder).found == {}
    saved(folder)
    assert opened(folder).found


@pytest.mark.parametrize("changed", [True, False])
def test_nothing_is_kept_of_a_source_that_changes_or_goes_meanwhile(folder, changed):
    cache, source = opened(folder), folder / "rope.py"
    cache.found = {"case": "result"}
    source.write_text("2") if changed else source.unlink()
    cache.save()
    assert not (folder / ".cache").exists()


def test_a_cache_that_cannot_be_written_costs_one_line(folder, capsys):
    printable.complain_once.cache_clear()
    (folder / ".cache").write_text("a file where the folder should be")
    for _ in range(2):
        saved(folder)
    assert opened(folder).found == {}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("study: ") and line.endswith("not kept for the next run")


def test_old_entries_of_a_cache_go(folder):
    for age, name in ((0.9, "new"), (1.1, "old")):
        entry = folder / ".cache" / "kernels" / name
        entry.mkdir(parents=True)
        (entry / "kernel.cubin").touch()
        os.utime(entry, times=(time.time() - age * disk_cache.OLDEST,) * 2)
    disk_cache.trim_caches()
    assert [path.name for path in entry.parent.iterdir()] == ["new"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_is_no_fault_of_the_kernel(number):
    """It once made every kernel a COMPILE_ERROR, which was recorded, and kept in the cache."""
    code, places = "def compile(error):\n    raise error\n", {}
    exec(compile(code, triton_compiler.__file__, "exec"), places)
    with pytest.raises(OSError, match="kernels") as caught:
        places["compile"](OSError(number, os.strerror(number), ".cache/kernels/x"))
    said = judge(caught.value)
    assert (said["verdict"], said["kind"]) == ("RUNTIME_ERROR", Kind.DISK)
    assert said["reason"].endswith(f"written to disk: {os.strerror(number)}: .cache/kernels/x")
