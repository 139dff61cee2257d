"""A device of a node as records name it, and the folder of its kind's records."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

INTERPRETER = "CPU, Triton's interpreter"
"""The name that stands for a device where there is no GPU."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one node, as records name it."""

    device: Literal["cpu", "cuda"]
    name: str
    """The device's name as torch has it, or one that stands for it."""
    node: str
    """The host's name."""
    uuid: str
    """The GPU's UUID; `cpu` without a GPU."""
    versions: dict[str, str]
    """Of Python and of the packages that take part."""
    memory_gib: int = 0
    """The most that a run may take of the GPU's memory, rounded; 0 without a GPU."""

    @property
    def kind(self) -> str:
        """The folder of the records of all devices of this kind."""
        return folder_of(self.name)


def folder_of(name: str) -> str:
    """Return the folder of a device's name: `nvidia-h200` for `NVIDIA H200`, `cpu` for none."""
    if name == INTERPRETER:
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
