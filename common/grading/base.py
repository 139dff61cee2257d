"""The harness's hold on the base, the process with torch from which fork servers are forked."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from common.paths import ROOT

LONGEST_IMPORT = 60.0
"""Seconds in which torch is imported."""
LONGEST_END = 10.0
"""Seconds in which the base must end by itself once its socket is closed."""
STEP = 0.005
"""Seconds between two looks at whether a process has ended."""
UNREAD = {"PYTEST_CURRENT_TEST"}
"""Variables that change while the harness runs, and that no library reads when it is imported."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy reads it when it is imported. Several solutions run at once, and the interpreter's products
are small: on two threads one of 128x64x128 took a hundred times the processor time that it takes on
one, where other processes kept the cores busy."""
Key = tuple[object, ...]


class Base:
    """One process; all servers that start with the same environment share it."""

    MODULE = "common.sandbox.base"
    _known: ClassVar[dict[Key, Base]] = {}
    _all = threading.Lock()

    def __init__(self, key: Key, output: int) -> None:
        """Start the process; its output goes to a file descriptor."""
        self._key, self._users = key, 0
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(LONGEST_IMPORT)
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.MODULE, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(ROOT), *_python_path()]),
                **ONE_THREAD,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the harness, which then ends the others
        )
        theirs.close()

    @classmethod
    def acquire(cls, quiet: bool) -> Base:
        """Return the base of the present environment; the caller releases it once."""
        environment = {name: value for name, value in os.environ.items() if name not in UNREAD}
        key = (cls.MODULE, os.getcwd(), quiet, *sorted(environment.items()))
        with cls._all:
            base = cls._known.get(key)
            if base is None or base.ended:
                output = subprocess.DEVNULL if quiet else sys.stderr.fileno()
                base = cls._known[key] = cls(key, output)
            base._users += 1
            return base

    def release(self) -> None:
        """End the process, unless another server still needs it."""
        with self._all:
            self._users -= 1
            if self._users:
                return
            if self._known.get(self._key) is self:
                del self._known[self._key]
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LONGEST_END)
        self._process.kill()
        self._process.wait()

    @property
    def ended(self) -> bool:
        """Whether the process has ended, and with it all that were forked from it."""
        return self._process.poll() is not None

    def start(
        self, module: str, arguments: Sequence[str], changed: Mapping[str, str], output: int
    ) -> Server:
        """Have a module run, as `python -m MODULE FD ARGUMENTS`; the server is to be closed.

        Args:
            module: The module.
            arguments: The arguments behind the file descriptor of its socket.
            changed: The variables in which its environment differs.
            output: The file descriptor of its output.
        """
        request = {
            "start": module,
            "arguments": list(arguments),
            "environment": os.environ | changed,
        }
        ours, theirs = socket.socketpair()
        ours.settimeout(LONGEST_IMPORT)
        with theirs, self._lock, contextlib.suppress(OSError):  # no answer comes then
            line = _line(request)
            sent = socket.send_fds(self._control, [line], [theirs.fileno(), output])
            self._control.sendall(line[sent:])
        return Server(self, ours)

    def runs(self, pid: int) -> bool:
        """Return whether a process that was forked from this one still runs."""
        with self._lock, contextlib.suppress(OSError):
            self._control.sendall(_line({"ended": pid}))
            return self._control.recv(1) == b"0"
        return False


class Server:
    """A process that was forked from the base."""

    def __init__(self, base: Base, control: socket.socket) -> None:
        """Wait for nothing yet: torch may still be imported."""
        self._base, self.control = base, control
        self._lock = threading.Lock()

    @functools.cached_property
    def _known_pid(self) -> int:
        with contextlib.suppress(OSError):
            return int(self.control.recv(64) or 0)
        return 0

    @property
    def pid(self) -> int:
        """Its id, 0 if it never came to be; the first call waits for the import of torch."""
        with self._lock:
            return self._known_pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._base.ended or not self.pid or not self._base.runs(self.pid)

    def wait(self, longest: float = LONGEST_END) -> bool:
        """Wait until it has ended, at most so many seconds; return whether it has."""
        end = time.monotonic() + longest
        while not (ended := self.ended) and time.monotonic() < end:
            time.sleep(STEP)
        return ended

    def kill(self) -> None:
        """End it."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()


def _line(request: Mapping[str, object]) -> bytes:
    return json.dumps(request).encode() + b"\n"


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
