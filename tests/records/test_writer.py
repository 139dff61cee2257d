"""A run's files have one writer: another's changes end the run."""

import resource
import shutil

import pytest

from common.errors import UserError
from common.records import runs
from common.records.runs import RunWriter
from tests.support.records import NAME, ROW, RUN, SAMPLES, row, samples_of
from tests.support.waiting import wait_until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "gpu" / NAME


@pytest.fixture
def file(path):
    """A run under way, with one timed row."""
    opened = RunWriter(path)
    opened.write(RUN)
    opened.rows([ROW], [SAMPLES])
    return opened


def test_raw_samples_stay_beside_a_run_that_is_continued(file, path):
    file.close()
    again = RunWriter(path)
    again.rows([row(case="c2")], [SAMPLES])
    again.end(RUN.run)
    again.close()
    found = [(line["case"], line["gpu"]) for line in samples_of(path)]
    assert found == [(ROW.case, SAMPLES["gpu"]), ("c2", SAMPLES["gpu"])]
    assert runs.files(path.parent) == [path]
    runs.samples_file(path).write_bytes(b"none")
    assert [each.case for each in runs.read(path.parent).rows] == [ROW.case, "c2"]


def test_a_device_has_one_writer(path):
    gpu, cpu = path.parent, path.parent.with_name("cpu")
    refused = pytest.raises(UserError, match="another run is writing to results/gpu")
    with runs.locked(gpu), runs.locked(cpu), refused, runs.locked(gpu):
        pass
    with runs.locked(gpu):
        pass


@pytest.mark.parametrize("how", ["append", "overwrite", "remove", "remove all", "replace"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_run_whose_file_another_process_changed_ends_with_one_line(file, path, how, ends):
    """As an editor or git does, too."""
    before, last = path.read_bytes(), path.stat().st_mtime_ns
    probe = path.parent.with_name("probe")
    assert wait_until(lambda: probe.touch() or probe.stat().st_mtime_ns > last)
    if how in ("remove", "replace"):
        path.unlink()
    if how == "remove all":
        shutil.rmtree(path.parent)
    elif how != "remove":
        path.write_bytes(before[::-1] if how == "overwrite" else before + before)
    with pytest.raises(UserError, match=f"{NAME}: another process changed the file"):
        file.end(RUN.run) if ends else file.rows([row(case="c2")])
    file.close()


def test_runs_stand_in_the_order_of_time(tmp_path):
    begun = []
    for run in ("f", "a", "c"):
        begun.append(runs.new_file(tmp_path, run))
        begun[-1].touch()
    assert runs.files(tmp_path) == begun


# --- a disk that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 10])
def test_a_full_disk_is_one_line_and_the_next_writer_finds_whole_lines(file, path, room):
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
    try:
        with pytest.raises(UserError, match=r"jsonl: File too large: make room there"):
            file.rows([row(case="c2")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file.close()
    RunWriter(path).close()
    assert path.read_bytes() == before
