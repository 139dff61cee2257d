"""Made-up records of a run without a GPU: its rows, the samples of one, and its file."""

import msgspec
from msgspec.structs import replace

from common.records import runs
from common.records.lines import Selection
from common.records.runs import RunWriter
from tests.support import boards

RUN = replace(boards.RUN, device="cpu", device_name="a laptop", selection=Selection(op="rope"))
ROW = boards.row(params=boards.PARAMS | {"lengths": [7, 1]}, error=0.7)
NAME = "20261121T082930Z-r1.jsonl"
SAMPLES = {"gpu": {"solution": [2.05, 2.04], "eager": [3.0]}}


def samples_of(path):
    """The raw samples of the run with this file."""
    return msgspec.json.Decoder().decode_lines(runs.samples_file(path).read_bytes())


def row(**fields):
    return replace(ROW, **fields)


def written(folder, *rows, run=RUN, name=NAME, end=True):
    """The file of a run with these rows."""
    file = RunWriter(folder / name)
    file.write(run)
    file.rows(rows)
    if end:
        file.end(run.run)
    file.close()
    return folder / name
