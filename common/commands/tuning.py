"""Search a folder's declared configurations for the fastest, for each shape of the board's calls.

A solution declares configurations (`TUNED`, see docs/tuning.md). Each is timed in the solution's
process by the whole call, so that one that does not compile, crashes or hangs fails alone. The
fastest has to pass the grader; `contributors/<handle>/configs/<device>.json` gets it.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from common import paths, wire
from common.commands.progress import Progress
from common.draws import Draws, entropy
from common.errors import UserError, out_of_memory
from common.grading.device import tier_cases
from common.grading.grade import grade_case
from common.grading.problem import make_problem
from common.grading.sweep import Sweep
from common.grading.worker import Worker
from common.measure import machine
from common.measure.timed_process import StagedCalls, TimedProcess, stage_calls
from common.measure.timing import PRECISION, sample_in_rounds
from common.solutions import Solution, discover
from common.spec import DIRECTIONS, Case, Direction, Op
from common.verdicts import BEFORE_LAUNCH, FINE, Failure
from common.wire import Reply

INPUTS = 2
"""The number of inputs that the timed calls use in turns."""
SECONDS = 0.1
"""Seconds for the samples of one configuration, exceeded only to reach the minimum number."""
Config = dict[str, Any]


class Shape(NamedTuple):
    """The sizes and dtype of a kernel's launch, for which a configuration is chosen."""

    kernel: str
    widths: tuple[int, ...]
    dtype: str
    tokens: int

    def __str__(self) -> str:
        """Return a description such as `up, 2048 tokens of 1024 x 2048 bfloat16`."""
        widths = " x ".join(map(str, self.widths))
        return f"{self.kernel}, {self.tokens} tokens of {widths} {self.dtype}"


class Trial(NamedTuple):
    """A configuration with the GPU time of the whole call, or with a failed verdict."""

    config: Config
    microseconds: float | None
    verdict: str
    reason: str


def fastest(trials: Sequence[Trial]) -> Trial | None:
    """Return the first trial within 1 % of the fastest, or None if no trial has a time.

    The clock cannot distinguish times within 1 %, and the choice should be the same in every run:
    of 100.0, 99.5 and 98.0 us it is the third, of 100.0, 99.5 and 99.2 us the first.
    """
    timed = [(trial.microseconds, trial) for trial in trials if trial.microseconds is not None]
    least = min((microseconds for microseconds, _ in timed), default=0.0)
    return next((trial for microseconds, trial in timed if microseconds <= 1.01 * least), None)


class Winners:
    """The file of the fastest configurations on one device, which a solution reads."""

    def __init__(self, folder: Path, device: str) -> None:
        """Read the entries of the current sources and versions."""
        siblings = [other for other in discover(folder.parent) if other.path.parent == folder]
        self._sources = {solution.name: solution.source_digest for solution in siblings}
        self._path = folder / "configs" / f"{machine.results_folder(device)}.json"
        self._head = {"schema": 1, **machine.device_fields(device), "versions": machine.versions()}
        self.entries: dict[Shape, dict[str, Any]] = {}
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            saved = json.loads(self._path.read_text())
            for kernel in saved["kernels"] if saved["versions"] == self._head["versions"] else ():
                for entry in saved["kernels"][kernel]:
                    if self._sources[entry["solution"]] == entry["sources"]:
                        widths, dtype, tokens = entry["widths"], entry["dtype"], entry["tokens"]
                        self.entries[Shape(kernel, tuple(widths), dtype, tokens)] = entry

    def add(self, shape: Shape, solution: str, trial: Trial) -> None:
        """Add an entry, and replace the file atomically."""
        self.entries[shape] = {
            "tokens": shape.tokens, "widths": shape.widths, "dtype": shape.dtype,
            "config": trial.config, "microseconds": trial.microseconds,
            "solution": solution, "sources": self._sources[solution],
        }  # fmt: skip
        kernels: dict[str, list[dict[str, Any]]] = {}
        for shape in sorted(self.entries):
            kernels.setdefault(shape.kernel, []).append(self.entries[shape])
        text = json.dumps({**self._head, "kernels": kernels}, indent=1)
        self._path.parent.mkdir(exist_ok=True)
        paths.replace(self._path, f"{text}\n".encode())


# --- the search -----------------------------------------------------------------------------------


def tune(sweep: Sweep, chosen: Sequence[Solution], steps: Progress) -> list[str]:
    """Search the shapes of one folder's solutions that have no entry yet; return lines of results.

    The file is written after each shape, so that an interruption costs one shape.

    Raises:
        UserError: A solution cannot be imported, or its TUNED is not as docs/tuning.md says.
    """
    kernels: dict[str, list[Config]] = {}
    declared = []
    for solution in chosen:
        with sweep.supervisor.lent(solution) as worker:
            own = _declared(worker, kernels)
        declared += [solution] * own
        if not own:
            steps.say(f"{solution.name} declares no TUNED: there is nothing to search")
    boards = list(tier_cases(declared, "board", sweep.device))
    todo = [(s, op, c) for s in declared for op, cases in boards if s.op == op.name for c in cases]
    search = _Search(sweep, kernels, Winners(chosen[0].path.parent, sweep.device), steps)
    steps.total(len(todo))
    for solution, op, case in todo:
        try:
            with sweep.supervisor.lent(solution) as worker:
                search.case(worker, op, case)
        except torch.OutOfMemoryError as error:
            steps.say(f"{solution.name} {case.name} does not fit: {out_of_memory(error)}")
        steps.done(f"{solution.name} {case.name}")
    return search.lines


def _declared(worker: Worker, kernels: dict[str, list[Config]]) -> bool:
    """Add the distinct configurations of each declared kernel, the default first, if there are any.

    Raises:
        UserError: The solution cannot be imported, or a declaration is wrong.
    """
    reply, name = worker.ask(wire.Tune(choices=[])), worker.solution.name
    if reply.get("verdict"):
        raise UserError(f"{name}: {reply['verdict']}: {reply['reason']}")
    try:
        for kernel in reply["kernels"]:
            configs: list[Config] = []
            for config in [kernel["default"], *kernel["space"]]:
                if config.keys() != kernel["default"].keys():
                    raise ValueError(f"{config} has other parameter names than the default")
                configs += [config] * (config not in configs)
            if kernels.setdefault(kernel["name"], configs) != configs:
                raise ValueError(f"there are two kernels named {kernel['name']!r}")
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{name}: TUNED is not as docs/tuning.md describes it: {error}") from None
    return bool(reply["kernels"])


def time_call(worker: Worker, staged: StagedCalls, direction: Direction) -> Reply:
    """Return the GPU times of the calls, or a verdict."""
    try:
        sampler = TimedProcess(worker, staged, direction).sampler("solution", "gpu")
        return {"gpu": sample_in_rounds([sampler], SECONDS, PRECISION["gpu"])["solution"]}
    except Failure as failed:
        return failed.reply


class _Search:
    """The search of one folder's kernels, each shape once."""

    def __init__(
        self, sweep: Sweep, kernels: dict[str, list[Config]], winners: Winners, steps: Progress
    ) -> None:
        self._device, self._memory = sweep.device, sweep.supervisor.memory
        self._kernels, self._winners, self._steps = kernels, winners, steps
        self._searched, self.lines = set(winners.entries), list[str]()

    def case(self, worker: Worker, op: Op[Any], case: Case) -> None:
        """Search each shape that the case's call looks up and that is not searched yet."""
        while True:
            directions, failure = self._looked_up(worker, op, case)
            new = [shape for shape in directions if shape not in self._searched]
            for shape in new:
                self._searched.add(shape)
                # a call whose backward fails for another reason still has a winner in forward
                graded = [directions[shape]] if failure else DIRECTIONS
                self._shape(worker, op, case, shape, directions[shape], graded)
            # a call that failed with a default may look up more shapes with a better configuration
            if not (failure and new):
                break
        if failure and failure["verdict"] != "UNSUPPORTED":
            place = f"{worker.solution.name} {case.name}"
            self._steps.say(f"{place}: {failure['verdict']}: {failure['reason']}")

    def _looked_up(
        self, worker: Worker, op: Op[Any], case: Case
    ) -> tuple[dict[Shape, Direction], Reply]:
        """Return the first direction that looks up each shape, and the call's failure if it fails.

        Calling the solution with the current winners shows what it looks up.
        """
        directions: dict[Shape, Direction] = {}
        staged = stage_calls(op, case, self._device, worker, 1)
        for direction in DIRECTIONS:
            self._force(worker)
            try:
                TimedProcess(worker, staged, direction)
                failure: Reply = {}
            except Failure as failed:
                failure = failed.reply
            for kernel, widths, dtype, tokens in self._force(worker).get("asked", []):
                if kernel in self._kernels and tokens > 0:
                    directions.setdefault(Shape(kernel, tuple(widths), dtype, tokens), direction)
            _recover(worker, failure.get("verdict"))
            if failure:
                break
        return directions, failure

    def _shape(
        self,
        worker: Worker,
        op: Op[Any],
        case: Case,
        shape: Shape,
        direction: Direction,
        graded: Sequence[Direction],
    ) -> None:
        """Time the configurations, and enter the fastest that passes the grader."""
        staged = stage_calls(op, case, self._device, worker, INPUTS)
        configs, trials = self._kernels[shape.kernel], list[Trial]()
        for config in configs:
            self._steps.doing(f"{shape}: {len(trials)} of {len(configs)} configurations")
            self._force(worker, shape, config)
            reply = time_call(worker, staged, direction)
            _recover(worker, reply.get("verdict"))
            time = round(float(median(reply["gpu"])), 2) if "gpu" in reply else None
            trials.append(Trial(config, time, reply.get("verdict", ""), reply.get("reason", "")))
        name, candidates = worker.solution.name, list(trials)
        while best := fastest(candidates):
            self._force(worker, shape, best.config)
            _, scarce = self._memory.needs(op, case)
            problem = make_problem(op, case, Draws(entropy()), self._device, scarce)
            verdicts = grade_case(problem, worker)
            _recover(worker, *(verdict.verdict for verdict in verdicts.values()))
            failed = [verdicts[d] for d in graded if verdicts[d].verdict not in FINE]
            if not failed:
                self._winners.add(shape, name, best)
                break
            candidates.remove(best)
            why = f"which is {failed[0].verdict}: {failed[0].reason}"
            self._steps.say(f"{name} {shape}: dropped {best.config}, {why}")
        self.lines.append(f"{name} {shape} ({direction})")
        self.lines += (f"    {line}" for line in _lines(trials, best))

    def _force(self, worker: Worker, *tried: Any) -> Reply:
        """Force the winners, and a configuration for a shape; return the solution's lookups."""
        best = {shape: entry["config"] for shape, entry in self._winners.entries.items()}
        best |= [tried] if tried else []
        return worker.ask(wire.Tune(choices=[[*shape, config] for shape, config in best.items()]))


def _recover(worker: Worker, *verdicts: str | None) -> None:
    """Restart the process if a kernel failed, because the CUDA context may be broken."""
    if not {None, *FINE, *BEFORE_LAUNCH}.issuperset(verdicts):
        worker.end_process()


def _lines(trials: Sequence[Trial], winner: Trial | None) -> Iterator[str]:
    """Yield the default's time, the winner's time, and the failures."""
    default, failed = trials[0], [trial for trial in trials if trial.microseconds is None]
    text = f"default {default.verdict or f'{default.microseconds:.2f} us'}"
    if not winner:
        yield f"{text}; no configuration passed, so that none was taken"
    elif winner is default:
        yield f"{text}, and nothing is faster by more than a hundredth"
    else:
        yield f"{text}, best {winner.microseconds:.2f} us: {json.dumps(winner.config)}"
    yield f"{len(trials) - len(failed)} measured, {len(failed)} skipped"
    for verdict, count in Counter(trial.verdict for trial in failed).items():
        reason = next(trial.reason for trial in failed if trial.verdict == verdict)
        yield f"skipped {count}: {verdict}: {reason}"
