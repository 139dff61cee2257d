"""The other side of the wall: what runs in a solution's own process, and the server it forks from.

`python -m common.sandbox.process FD` is the fork server. Each child serves one solution: it answers lines of
JSON with lines of JSON, works in the harness's memory, and never holds an expected result.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import gc
import importlib.util
import inspect
import itertools
import json
import os
import random
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._dynamo  # what autograd.Function and torch.compile import when first used: a second
import triton  # as torch, imported once for every worker
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from common import ops
from common.arena import BAND, Arena, Slot, dtype_name
from common.paths import PEERS
from common.sandbox import clock, contestants, trace
from common.sandbox.landlock import confine
from common.sandbox.rotation import Rotation, TimedCall
from common.sandbox.seal import Seal
from common.spec import Op
from common.wire import Reply

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    from common.sandbox.interpreter import bounds, patches

OPS = {name: ops.load(name) for name in ops.names()}
LARGEST_DATA = 8 << 30
"""Bytes of memory that one worker without a GPU may write to."""
GENERATIONS = 100
"""Of processes that a solution leaves behind, each started by the one before."""


class Refused(Exception):
    """What the solution's own process can say of it: a verdict and a reason."""

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.verdict, self.reason = verdict, reason


# --- the contract ---------------------------------------------------------------------------------


def load(path: Path, op: Op[Any]) -> Callable[..., Any]:
    """The file's function named after the op, its signature held against the op's interface."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"solution_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"line {error.lineno} of {Path(error.filename or path).name}"
        raise Refused("COMPILE_ERROR", f"does not import: {error.msg}, {where}") from None
    except (Exception, SystemExit) as error:
        raise Refused("COMPILE_ERROR", f"does not import: {describe(error)}") from error
    function = getattr(module, op.name, None)
    if not callable(function):
        raise Refused("COMPILE_ERROR", f"lacks a function named {op.name}")
    _hold_signature(function, op.interface, op.name)
    return function  # type: ignore[no-any-return]


def loaded(path: Path) -> ModuleType:
    """The module that `load` made of the file."""
    return sys.modules[f"solution_{path.stem}"]


def _hold_signature(function: Callable[..., Any], interface: type, name: str) -> None:
    contract = list(inspect.signature(interface.__call__).parameters.values())[1:]
    inputs = [p.name for p in contract if p.kind is p.POSITIONAL_OR_KEYWORD]
    options = {p.name: p.default for p in contract if p.kind is p.KEYWORD_ONLY}
    theirs = list(inspect.signature(function).parameters.values())
    positional = [p.name for p in theirs if p.kind is p.POSITIONAL_OR_KEYWORD]
    if positional[: len(inputs)] != inputs:
        wanted = f"{name}({', '.join(inputs)}, ...)"
        found = f"{name}{inspect.signature(function)}"
        raise Refused("COMPILE_ERROR", f"has another signature: {found} instead of {wanted}")
    for parameter in theirs[len(inputs) :]:
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.name not in options:
            reason = f"has another signature: {name} has no option {parameter.name!r}"
            raise Refused("COMPILE_ERROR", reason)
        if repr(parameter.default) != repr(options[parameter.name]):
            reason = f"has another signature: {parameter.name} must be {options[parameter.name]!r}"
            raise Refused("COMPILE_ERROR", f"{reason} unless given")


def named_options(function: Callable[..., Any], options: Reply) -> Reply:
    """The options that the function names; UNSUPPORTED if it names not one that is given."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return options
    for name in options:
        if name not in parameters:
            raise Refused("UNSUPPORTED", f"does not take {name}")
    return options


def preparation(path: Path) -> Callable[..., Any] | None:
    """A loaded peer's `prepare`, which is not timed: it does what its library's user would not pay
    for, and returns the call. A contributor has none: whatever he does is his solution."""
    if not path.is_relative_to(PEERS):
        return None
    return getattr(loaded(path), "prepare", None)


# --- one graded call ------------------------------------------------------------------------------


class Poison(TorchDispatchMode):
    """Fills fresh memory, whatever allocates it, so that an element nobody wrote shows.

    NaN in the first run and a number in the second: what differs between the two came from here.
    """

    def __init__(self, value: float, guarded: str = "cuda") -> None:
        """On a device of type `guarded`, fresh memory stands between guard bands too: a number in
        the first run and NaN in the second, so that a read outside shows in the second alone.
        Triton's interpreter needs none, since every address is looked at there."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.value, self.guarded = value, guarded
        self._guard = 0x45 if value != value else 0xFF
        self._fresh: list[tuple[torch.Tensor, int]] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Else torch.compile would step aside and run eager."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fresh = func(*args, **(kwargs or {}))
        if func.overloadpacket in _ALLOCATIONS:
            if fresh.device.type == self.guarded and func.overloadpacket is not _RESIZE:
                fresh = self._between_bands(fresh)
            fill(fresh, self.value)
        return fresh

    def _between_bands(self, fresh: torch.Tensor) -> torch.Tensor:
        size = fresh.untyped_storage().nbytes()
        raw = torch.full((size + 2 * BAND,), self._guard, dtype=torch.uint8, device=fresh.device)
        self._fresh.append((raw, size))
        start = BAND // fresh.itemsize
        target = torch.empty(0, dtype=fresh.dtype, device=fresh.device)
        return target.set_(raw.untyped_storage(), start, fresh.shape, fresh.stride())

    def overrun(self) -> str | None:
        """What was written beside fresh memory: `4 bytes after memory of its own`."""
        bands = [band for raw, size in self._fresh for band in (raw[:BAND], raw[BAND + size :])]
        if not bands:
            return None
        counts = torch.stack([(band != self._guard).sum() for band in bands]).tolist()
        for where, written in zip(itertools.cycle(("before", "after")), counts, strict=False):
            if written:
                return f"wrote {written} bytes {where} memory of its own"
        return None


_RESIZE = torch.ops.aten.resize_
_ALLOCATIONS = {
    getattr(torch.ops.aten, name)
    for name in (
        "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_".split()
    )
}


def fill(tensor: torch.Tensor, value: float) -> None:
    if tensor.is_floating_point():
        tensor.fill_(value)
    elif tensor.dtype is torch.bool:
        tensor.fill_(value != value)
    elif not tensor.is_complex():
        most = torch.iinfo(tensor.dtype).max
        tensor.fill_(most if value != value else most // 2)


class Session:
    """The state of one solution's process: its function, the arena, the call under way."""

    def __init__(self, refuse: Callable[[str], None]) -> None:
        self._refuse = refuse
        self._seal = Seal(relied_on())
        self.function: Callable[..., Any] | None = None
        self.module: ModuleType | None = None
        self.prepare: Callable[..., Any] | None = None
        self.arena: Arena | None = None
        self.output: torch.Tensor | None = None
        self.inputs: dict[str, torch.Tensor] = {}
        self.poison, self.backwards = 0.0, False

    def load(self, path: str, op: str) -> Reply:
        try:
            self.function = load(Path(path), OPS[op])
            self.module = loaded(Path(path))
            self.prepare = preparation(Path(path))
        finally:
            self._hold()
        return {}

    def _hold(self) -> None:
        """End the process, its answer given, if the solution replaced what the answer rests on."""
        if broken := self._seal.broken():
            self._refuse(broken)

    def forward(
        self, call: Reply, result: Reply, poison: float | None, backwards: bool = False
    ) -> Reply:
        """Call the function, put what it returns into `result`, and say what it is; under the
        interpreter the programs of a launch may run backwards."""
        self.backwards = backwards
        self.poison = float("nan") if poison is None else poison
        self.inputs, options = self.bind(call)
        with self._graded():
            self.output = self.solve(self.inputs, options)
        delivered = self._deliver(self.output, result)
        return delivered | {"differentiable": self.output.requires_grad}

    def backward(self, upstream: Reply, results: Reply) -> Reply:
        """The gradients of the last forward; None where the graph gives none."""
        assert self.output is not None
        inputs = {name: self.inputs[name] for name in results}
        gradient = self.tensor(upstream)
        with self._graded():
            gradients = torch.autograd.grad(
                self.output, list(inputs.values()), gradient, allow_unused=True
            )
            self.output = None
        return {
            name: None if grad is None else self._deliver(grad, results[name])
            for name, grad in zip(inputs, gradients, strict=True)
        }

    def time(
        self, calls: list[Reply], results: list[Reply], baseline: Reply, op: str, **how: Any
    ) -> Reply:
        """Samples of the solution, of eager and of the limits, taken in turn, and which of the
        solution's results were kept; see clock.py and rotation.py."""
        reference = OPS[op].reference
        rotated = [self._call(call, each) for call, each in zip(calls, results, strict=True)]
        ours = Rotation(rotated, how["backward"], self._look)
        eager = TimedCall(*self._timed(None, reference, baseline), memory=[], results={})
        alike = Rotation([eager], how["backward"])
        samples = clock.take_samples(ours, alike, **how)
        self._hold()
        if ours.shared and not self.prepare:
            raise Refused("TAMPERED", "the results of several calls lie in the same memory")
        return samples | {"kept": ours.kept}

    def _call(self, call: Reply, results: Reply) -> TimedCall:
        """One input of the rotation. What a peer has prepared would not see its inputs change, and
        it may write over what it has, so that nothing of it changes or is kept."""
        timed = self._timed(self.prepare, self.function, call)
        if self.prepare:
            return TimedCall(*timed, memory=[], results={})
        return TimedCall(
            *timed,
            memory=[self._elements(slot) for slot in changing(call)],
            results={name: self.tensor(slot) for name, slot in results.items()},
        )

    def let_go(self) -> None:
        """Of the memory that is shared, and of what only waits to be used again."""
        self.output, self.inputs = None, {}
        if self.arena:
            self.arena.close()
            self.arena = None
        if not INTERPRETED:
            gc.collect()
            torch.cuda.empty_cache()

    def settle(self) -> Reply:
        """Say that the request before is done with."""
        return {}

    def trace(self, call: Reply, backward: bool) -> Reply:
        """A Chrome trace of a few calls; see trace.py."""
        run = contestants.as_run(self._timed(self.prepare, self.function, call), backward)
        return {"trace": trace.chrome_trace(run, cuda=not INTERPRETED)}

    def tunable(self) -> Reply:
        """The kernels whose configurations the solution lets others choose; see CONTRIBUTING.md."""
        self.force([])
        kernels = [
            {"name": tuned.name, "default": tuned.default, "space": list(tuned.space)}
            for tuned in self._tuned()
        ]
        json.dumps(kernels)  # else a reply that is none would end the process
        return {"kernels": kernels}

    def force(self, choices: list[Any]) -> Reply:
        """From here on each kernel takes what is chosen for just that shape, or its default."""
        for tuned in self._tuned():
            tuned.asked.clear()
            tuned.forced = {
                (tokens, tuple(widths), getattr(torch, dtype)): config
                for kernel, tokens, widths, dtype, config in choices
                if kernel == tuned.name
            }
        return {}

    def lookups(self, call: Reply, choices: list[Any]) -> Reply:
        """What one call asks of its kernels in each direction; with the verdict if it fails."""
        asked: Reply = {}
        try:
            forward, wanted, upstream = self._timed(None, self.function, call)
            output = self._lookups("forward", forward, choices, asked)
            if output.requires_grad:
                backward = functools.partial(torch.autograd.grad, output, wanted, upstream)
                self._lookups("backward", backward, choices, asked)
        except Exception as error:
            return {"asked": asked} | judge(error)
        return {"asked": asked}

    def _lookups(
        self, direction: str, run: Callable[[], Any], choices: list[Any], asked: Reply
    ) -> Any:
        self.force(choices)
        try:
            with self._graded():
                return run()
        finally:
            asked[direction] = [
                [tuned.name, int(tokens), [int(width) for width in widths], dtype_name(dtype)]
                for tuned in self._tuned()
                for tokens, widths, dtype, *_ in tuned.asked
            ]

    def time_forced(self, calls: list[Reply], choices: list[Any], **how: Any) -> Reply:
        """Samples of the solution alone, its kernels' configurations chosen."""
        self.force(choices)
        ours = [self._timed(None, self.function, call) for call in calls]
        return {"gpu": clock.take_samples_alone(ours, **how)}

    def _tuned(self) -> tuple[Any, ...]:
        return tuple(getattr(self.module, "TUNED", ()))

    def _timed(
        self, prepare: Callable[..., Any] | None, function: Callable[..., Any] | None, call: Reply
    ) -> tuple[Any, Any, Any]:
        """(forward, gradient inputs, upstream) of one call, for the clock: the bare function, since
        whatever is done around it is timed."""
        inputs, options = self.bind(call)
        wanted = [inputs[name] for name in call["differentiable"]]
        upstream = self.tensor(call["upstream"])
        if prepare:
            return prepare(**inputs, **options), wanted, upstream
        assert function is not None
        return functools.partial(function, **inputs, **options), wanted, upstream

    def _elements(self, slot: Reply) -> torch.Tensor:
        """The slot's whole storage, a row of bytes for each element."""
        assert self.arena is not None
        parsed = Slot(**slot)
        return self.arena.bytes_of(parsed).view(-1, getattr(torch, parsed.dtype).itemsize)

    def solve(self, inputs: dict[str, torch.Tensor], options: Reply) -> torch.Tensor:
        assert self.function is not None
        output: torch.Tensor = self.function(**inputs, **options)
        self._check(output)
        return output

    def _look(self, output: Any) -> None:
        """After each timed sample: what was replaced for it may be back in place at the end."""
        self._hold()
        self._check(output)

    def _check(self, output: Any) -> None:
        """That it is a tensor, of torch's own kind and in memory of its own."""
        assert self.arena is not None
        if not isinstance(output, torch.Tensor):
            raise Refused("INCORRECT_SHAPE", f"returned {type(output).__name__}, not a tensor")
        if type(output) is not torch.Tensor:
            reason = f"returned {type(output).__name__}, which may not hold what it shows"
            raise Refused("TAMPERED", reason)
        if output.numel() and self.arena.holds(output):
            raise Refused("MUTATED_INPUT", "the output lies in the memory of an argument")

    def bind(self, call: Reply) -> tuple[dict[str, torch.Tensor], Reply]:
        """The call's tensors, leaves that require a gradient where one is due, and its options."""
        assert self.function is not None
        tensors = {name: self.tensor(slot) for name, slot in call["tensors"].items()}
        for name in call["differentiable"]:
            tensors[name] = tensors[name].detach().requires_grad_()
        # an option may be a tensor; either way the function has to name it
        optional = {name: tensors.pop(name) for name in call["optional"]}
        return tensors, named_options(self.function, {**call["options"], **optional})

    def tensor(self, slot: Reply) -> torch.Tensor:
        assert self.arena is not None
        return self.arena.tensor(Slot(**slot))

    @contextlib.contextmanager
    def _graded(self) -> Iterator[None]:
        """Fresh memory poisoned; under the interpreter, every address held against the launch's."""
        watched = None
        if INTERPRETED:
            watched = bounds.WATCH.begin_call(self.inputs, self.backwards)
        try:
            with Poison(self.poison) as poison:
                yield
                if _get_current_dispatch_mode() is not poison:
                    self._refuse("the mode that poisons fresh memory was ended")
            if written := poison.overrun():
                raise Refused("OUT_OF_BOUNDS", written)
        finally:
            self._hold()
            if watched and watched is not bounds.WATCH.log:
                self._refuse("the watch over memory was replaced")
            if watched and (fault := watched.fault()):
                raise Refused("OUT_OF_BOUNDS", fault) from None

    def _deliver(self, tensor: torch.Tensor, result: Reply) -> Reply:
        """Copy a result that has the shape and dtype of its slot; say which it has."""
        target = self.tensor(result)
        if tensor.device.type != target.device.type:
            reason = f"a result lies on {tensor.device.type}, expected {target.device.type}"
            raise Refused("RUNTIME_ERROR", reason)
        if tensor.shape == target.shape and tensor.dtype == target.dtype:
            with torch.no_grad():
                target.copy_(tensor.detach())
                # work on the stream of the call is done in the copy, any other may come later
                synchronize()
                same = (target == tensor) | ((target != target) & (tensor != tensor))
                if not bool(same.all()):
                    raise Refused("TAMPERED", "a result changed after it was returned")
        return {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}


def changing(call: Reply) -> list[Reply]:
    """The slots that are shifted between timed calls, the upstream gradient's among them."""
    return [*(call["tensors"][name] for name in call["changing"]), call["upstream"]]


def synchronize() -> None:
    if not INTERPRETED:
        torch.cuda.synchronize()


def relied_on() -> Iterator[ModuleType | type]:
    """What calls a solution, looks at its answer and times it."""
    yield from (builtins, json, time, torch, torch.autograd, torch.cuda, torch.nn.functional)
    yield from (json.JSONEncoder, random.Random, socket.socket, TorchDispatchMode)
    yield from (DeviceContext, sys.modules[DeviceContext.__module__])
    yield from (torch.Tensor, torch.UntypedStorage, torch.cuda.Event, torch.cuda.Stream)
    modules = [module for name, module in sys.modules.items() if _is_ours(name)]
    if INTERPRETED:
        modules.append(triton.runtime.interpreter)
    for module in modules:
        yield module
        classes = (value for value in vars(module).values() if isinstance(value, type))
        yield from (each for each in classes if each.__module__ == module.__name__)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "common"


# --- what went wrong ------------------------------------------------------------------------------


def judge(error: BaseException) -> Reply:
    """The verdict that an exception stands for, with one line of reason."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, Refused):
            return {"verdict": cause.verdict, "reason": cause.reason}
        # torch raises the same for a dtype that one of its functions does not take
        if isinstance(cause, NotImplementedError) and "not implemented for '" not in str(cause):
            return {"verdict": "UNSUPPORTED", "reason": _line(str(cause) or "not implemented")}
        if isinstance(cause, CompilationError | OutOfResources | PTXASError):
            reason = f"a kernel does not compile: {describe(cause)}"
            return {"verdict": "COMPILE_ERROR", "reason": reason}
    return {"verdict": "RUNTIME_ERROR", "reason": describe(causes[-1])}


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def describe(error: BaseException) -> str:
    """`ValueError: bad width, line 12 of rope.py`."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _theirs(frame)]
    where = f", line {frames[-1].lineno} of {Path(frames[-1].filename).name}" if frames else ""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be had)"
    return _line(f"{type(error).__name__}: {text}") + where


def _theirs(frame: traceback.FrameSummary) -> bool:
    """Not the harness's, the interpreter's, torch's or Python's own."""
    return frame.filename.startswith(sys.path[0])


def _line(text: str) -> str:
    return " ".join(text.split())[:400]


# --- the process ----------------------------------------------------------------------------------


def serve(connection: socket.socket) -> None:
    """Answer one request after the other until the harness closes the socket."""
    token, send, end = "", connection.sendall, os._exit

    def refuse(broken: str) -> None:
        """In as few steps as can be: whatever else is used may be what was replaced."""
        line = '{"token": "%s", "verdict": "TAMPERED", "reason": "%s"}\n'
        send((line % (token, broken)).encode())
        end(0)

    solving = Session(refuse)
    _hide()
    pending = b""
    while True:
        chunk, fds, _, _ = socket.recv_fds(connection, 1 << 20, 1)
        if not chunk:
            return
        pending += chunk
        if not pending.endswith(b"\n"):
            continue
        message, pending = json.loads(pending), b""
        token = message.pop("token")
        reply = _answer(solving, message, fds) | {"token": token}
        send(json.dumps(reply).encode() + b"\n")


def _hide() -> None:
    """What a solution imports of ours from now on is a copy that nobody else uses."""
    for name in list(filter(_is_ours, sys.modules)):
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")


def _answer(solving: Session, message: Reply, fds: list[int]) -> Reply:
    request = message.pop("request")
    if request == "arena":
        solving.let_go()
        if message["ticket"]:
            solving.arena = Arena.mapped(message["ticket"], fds[0] if fds else None)
        return {}
    try:
        reply: Reply = getattr(solving, request)(**message)
        return reply
    except BaseException as error:  # SystemExit among them: a solution may not end the process
        return judge(error) | ({"ended": True} if _context_is_lost() else {})


def _context_is_lost() -> bool:
    """After an illegal address nothing works in this process any more."""
    try:
        synchronize()
    except RuntimeError:
        return True
    return False


def become_worker(connection: socket.socket, server: int) -> None:
    """What a fresh fork sets up before it serves: it dies with its parent and leaves no core."""
    os.setsid()
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != server:  # it died before that
        return
    confine(libc)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if INTERPRETED:  # CUDA reserves more than there is
        resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_DATA, LARGEST_DATA))
        libc.mallopt(-6, 0xA5)  # M_PERTURB: what no dispatch mode sees is a number too, 0x5A5A...
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    if INTERPRETED:
        patches.install()
    serve(connection)


def fork_server(control: socket.socket) -> None:
    """`fork`, with a socket for the child: its process id. `reap PID`: its wait status."""
    server = os.getpid()
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what workers leave behind comes here
    workers: set[int] = set()
    while True:
        request, fds, _, _ = socket.recv_fds(control, 64, 1)
        if not request:
            break
        words = request.split()
        if words[0] == b"reap":
            control.sendall(str(_reap(int(words[1]), workers)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                become_worker(socket.socket(fileno=fds[0]), server)
            os._exit(0)
        workers.add(pid)
        os.close(fds[0])
        control.sendall(str(pid).encode())
    for pid in list(workers):
        _kill(pid)
    _end_strays(set())


def _reap(pid: int, workers: set[int]) -> int:
    """The wait status of a worker that is ended, and with it what workers left behind."""
    time.sleep(0.05)  # one that is ending by itself shall tell its own exit code
    _kill(pid)
    status = os.waitpid(pid, 0)[1]
    workers.discard(pid)
    _end_strays(workers)
    return status


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # it may not lead a group of its own yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _end_strays(workers: set[int]) -> None:
    """End every child of this process that is no worker: its parent died and left it here."""
    for _ in range(GENERATIONS):
        if not (strays := _children() - workers):
            return
        for pid in strays:
            _kill(pid)
            os.waitpid(pid, 0)


def _children() -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


if __name__ == "__main__":
    from common.sandbox import process

    # the module under its own name, so that a worker has one copy of it
    process.fork_server(socket.socket(fileno=int(sys.argv[1])))
