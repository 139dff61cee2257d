"""Launches that the model of GPU time is asked about."""

from common.records.lines import Launch


def launch(**changed):
    """A launch that copies 256 MiB in programs of 8 KiB."""
    whole = 1 << 27
    fields = {
        "kernel": "copy", "grid": (1 << 15, 1, 1), "sampled": 8, "fetched": whole, "read": whole,
        "written": whole, "flops": {}, "rounds": 1.0,
    }  # fmt: skip
    return Launch(**fields | changed)
