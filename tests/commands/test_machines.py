"""Machines as they are: what a GPU shares between processes, and its dtypes."""

import argparse
from contextlib import closing

import pytest
import torch

from common.arena import Arena
from common.commands import options
from common.errors import UserError
from common.grading.device import tier_cases
from common.grading.fork_server import ForkServer
from common.grading.retries import Cause, cause_of
from common.solutions import discover
from common.verdicts import Failure
from common.wire import Load, Ticket
from tests.support.workers import workers

# --- what it shares -------------------------------------------------------------------------------


@pytest.fixture
def refused(worker):
    """The message where a new process cannot map the harness's memory."""

    def message():
        one = worker("", "rotate_half")
        one.arena(1)
        with pytest.raises(UserError) as caught:
            one.ask(Load(path="", op=""))
        return str(caught.value)

    return message


def test_memory_that_another_process_cannot_map_is_one_line(refused, monkeypatch):
    """With or without a GPU."""
    lost = Ticket(1, (0, b"no handle", 1, 0, b"", 0, b"", False))
    monkeypatch.setattr(Arena, "ticket", lambda arena: lost)
    monkeypatch.setattr(Arena, "fds", [])
    (line,) = refused().splitlines()
    assert line.startswith("this machine cannot share GPU memory between processes (CUDA IPC: ")
    assert "could not map" in line
    assert line.endswith("; --device cpu grades without the GPU")


def test_a_gpu_without_a_context_left_is_asked_again_alone(tmp_path, monkeypatch):
    """A case may find the memory full of others' contexts; alone, the machine is at fault."""
    monkeypatch.setenv("STUDY_TEST_SERVER", "busy")
    with closing(ForkServer("cpu")) as server, workers(server, tmp_path) as start:
        one = start("", "rotate_half")
        one.arena(1)
        *other, connection = server.fork()
        with connection:
            failure = Failure.from_reply(one.ask(Load(path="", op="")))
            server.reap(*other)
        assert cause_of(failure) is Cause.OUT_OF_MEMORY
        with pytest.raises(UserError, match=r"cannot share GPU memory.*busy"):
            one.ask(Load(path="", op=""))


def test_where_the_driver_gives_no_handle_one_line_names_the_remedies(refused, monkeypatch):
    def ticket(arena):
        raise RuntimeError("CUDA error: operation not supported\nCUDA kernel errors might be ...")

    monkeypatch.setattr(Arena, "ticket", ticket)
    assert refused() == (
        "this machine cannot share GPU memory between processes"
        " (CUDA IPC: CUDA error: operation not supported): docs/machines.md has the remedies;"
        " --device cpu grades without the GPU"
    )


# --- its dtypes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bfloat16", [False, True])
def test_cases_of_a_dtype_that_the_gpu_lacks_are_left_out(monkeypatch, capsys, bfloat16):
    """A GPU with room for everything, and with bfloat16 or without."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 60, 1 << 60))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bfloat16)
    monkeypatch.setattr(options, "driver", lambda: True)
    assert options.device(argparse.Namespace(device=None)) == "cuda"
    house = [each for each in discover() if each.name in ("house/rope", "house/rotate_half")]
    dtypes = {device: {case.dtype for _, cases in tier_cases(house, "board", device)
                       for case in cases} for device in ("cpu", "cuda")}  # fmt: skip
    line = "study: Tesla T4 has no bfloat16: cases of that dtype are left out"
    assert capsys.readouterr().err.splitlines() == [line] * (not bfloat16)
    assert "bfloat16" in dtypes["cpu"]
    assert dtypes["cuda"] == {"float32", "float16", *["bfloat16"] * bfloat16}


def test_without_a_driver_the_device_is_known_before_torch_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("torch was asked"))
    monkeypatch.setattr(options, "driver", lambda: False)
    assert options.device(argparse.Namespace(device=None)) == "cpu"
    monkeypatch.setattr(options, "driver", lambda: True)
    assert options.device(argparse.Namespace(device="cpu")) == "cpu"
