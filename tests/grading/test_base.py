"""The base: fork servers of one environment share its import of torch, and outlive no base."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from common.grading.base import Base
from common.grading.fork_server import TARGET, ForkServer
from tests.support.processes import alive, ends


@pytest.fixture(autouse=True)
def environment_of_its_own(monkeypatch, request):
    """Other tests' servers keep their base, which a test here may end."""
    monkeypatch.setenv("TEST_OF_THE_BASE", request.node.name)


@pytest.fixture
def servers():
    """Return a function that starts a server, which ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(**options):
            return stack.enter_context(contextlib.closing(ForkServer("cpu", light=True, **options)))

        yield start


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def environment(pid: int) -> bytes:
    with open(f"/proc/{pid}/environ", "rb") as environ:
        return environ.read()


def forked(server: ForkServer) -> int:
    """Return the server's process, in which a worker came to be."""
    pid, _, connection = server.fork()
    connection.close()
    return pid


@pytest.mark.slow
def test_servers_of_one_environment_share_a_base(servers):
    one, other = forked(servers()), forked(servers(target=TARGET))
    assert one != other and parent(one) == parent(other)
    assert "torch" in Path(f"/proc/{parent(one)}/maps").read_text()


@pytest.mark.slow
def test_another_environment_takes_another_base(servers, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    one = forked(servers())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    other = forked(servers())
    assert parent(one) != parent(other)
    assert b"OMP_NUM_THREADS=1" in environment(parent(other)), "as torch read it"


@pytest.mark.slow
def test_a_base_ends_with_its_last_server():
    one, other = ForkServer("cpu", light=True), ForkServer("cpu", light=True)
    pid = parent(forked(one))
    one.close()
    assert alive(pid) and parent(forked(other)) == pid
    other.close()
    assert ends(pid)


@pytest.mark.slow
def test_a_server_that_is_closed_at_once_leaves_no_process():
    server = ForkServer("cpu", light=True)
    pid = server._base._process.pid
    server.close()
    assert ends(pid)


@pytest.mark.slow
def test_servers_end_with_their_base_and_start_again(servers):
    one, other = servers(), servers()
    before = forked(one), forked(other)
    os.kill(parent(before[0]), 9)
    assert all(map(ends, before))
    after = forked(one), forked(other)
    assert parent(after[0]) == parent(after[1])
    assert all(map(alive, after)), "each was started once more"


@pytest.mark.slow
def test_the_harness_is_told_of_a_server_that_never_comes_to_be(servers, monkeypatch):
    monkeypatch.setattr(ForkServer, "MODULE", "common.sandbox.no_such_module")
    server = servers()
    with pytest.raises(Exception, match="the fork server ended"):
        server.fork()


@pytest.mark.slow
def test_a_request_may_be_larger_than_a_sockets_buffer(servers, monkeypatch):
    for number in range(20):
        monkeypatch.setenv(f"LONG_{number}", str(number) * 20_000)
    assert alive(forked(servers()))


@pytest.mark.slow
def test_no_server_holds_the_socket_of_its_base(servers):
    """A solution that sent a request there would have the base run what it likes."""
    base = Base.acquire(True)
    with contextlib.closing(servers()) as server:
        pid = forked(server)
        inodes = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        theirs = base._process.pid
        kept = {os.readlink(f"/proc/{theirs}/fd/{fd}") for fd in os.listdir(f"/proc/{theirs}/fd")}
    base.release()
    assert not {each for each in inodes & kept if each.startswith("socket:")}
    assert isinstance(base._control, socket.socket)
