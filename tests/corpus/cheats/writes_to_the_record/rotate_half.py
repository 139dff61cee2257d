"""It adds rows to the record and replaces the file. Harmless: Landlock forbids it, or the run ends.

Expected: forward=PASSED backward=PASSED
"""

import contextlib
import os
from pathlib import Path

import torch


def _records():
    folders = Path(__file__).resolve().parents
    return [path for folder in folders for path in folder.glob("results/cpu/*.jsonl")]


def _more(record):
    """Its last line once more."""
    return record.read_text().splitlines(keepends=True)[-1]


for record in _records():
    with contextlib.suppress(OSError), record.open("a") as file:
        file.write(_more(record))


def rotate_half(x):
    for record in _records():
        with contextlib.suppress(OSError):
            other = record.with_suffix(".other")
            other.write_text(record.read_text() + _more(record))
            os.replace(other, record)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
