"""It patches a copy of the record's writer. Harmless: its process writes no rows.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import msgspec

from common.records.runs import RunWriter

write = RunWriter.rows
RunWriter.rows = lambda self, rows, samples=(): write(
    self, [msgspec.structs.replace(row, verdict="PASSED") for row in rows], samples
)


def rotate_half(x):
    return x * 2
