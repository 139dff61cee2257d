"""What a record says of the machine."""

import pytest

from common.measure.machine import machine


@pytest.fixture
def says(tmp_path, monkeypatch):
    """Return a function that puts a made-up nvidia-smi, which runs a line of sh, before others."""

    def says(line):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return says


def test_driver_and_power_limit_are_those_of_the_gpu(says):
    says('[ "$1" = --id=GPU-210b ] && echo "580.95.05, 700.00 W"')
    found = machine("210b")
    assert found.pop("driver") == "580.95.05" and found.pop("power limit") == "700.00 W"
    assert found.keys() <= {"CUDA", "CPU"}


@pytest.mark.parametrize("line", ["echo No devices were found; exit 6", None])
def test_without_an_answer_they_are_left_out(says, monkeypatch, line):
    says(line) if line else monkeypatch.setenv("PATH", "")
    assert machine("210b").keys() <= {"CUDA", "CPU"}
