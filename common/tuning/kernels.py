"""The kernels that a solution declares to be tunable, and the events of a search."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from common.errors import UserError
from common.solutions import Solution
from common.spec import Case
from common.tuning.points import Config, Trial, TuningTask
from common.wire import Reply

# --- what is declared -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """One kernel of a solution, with the configurations that it declares."""

    name: str
    configs: list[Config]
    """The default, then the others in the order of declaration, each once."""

    @classmethod
    def of(cls, name: str, default: Config, space: Iterable[Config]) -> Kernel:
        """Return the kernel; raise ValueError if a configuration lacks a name of the default."""
        configs: list[Config] = []
        for config in [default, *space]:
            if not isinstance(config, dict) or config.keys() != default.keys():
                raise ValueError(f"{config} of {name!r} has other names than its default")
            if config not in configs:
                configs.append(config)
        return cls(str(name), configs)


def declared_by(solution: Solution, answer: Reply) -> list[Kernel]:
    """Return the kernels in the answer of the solution's process.

    Raises:
        UserError: The solution's TUNED is not as CONTRIBUTING.md describes it.
    """
    try:
        return [Kernel.of(**kernel) for kernel in answer["kernels"]]
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(
            f"{solution.name}: TUNED is not as CONTRIBUTING.md describes it: {error}"
        ) from None


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Notice:
    """A line for the user."""

    line: str


@dataclass(frozen=True)
class CaseStarted:
    """The search begins with case `number` of `total`."""

    solution: Solution
    case: Case
    number: int
    total: int


@dataclass(frozen=True)
class ConfigTimed:
    """`done` of a task's `total` configurations have been timed, now or earlier."""

    task: TuningTask
    done: int
    total: int


@dataclass(frozen=True)
class Found:
    """The result for one shape: each configuration's trial, the default's first, and the winner."""

    task: TuningTask
    trials: list[Trial]
    winner: Trial | None

    def lines(self) -> Iterator[str]:
        """Yield lines that state the default's time, the winner's, and the failures."""
        default, failed = self.trials[0], [t for t in self.trials if t.microseconds is None]
        yield f"{self.task.solution} {self.task.shape} ({self.task.direction})"
        before = default.verdict if default in failed else f"{default.microseconds:.2f} us"
        if not (best := self.winner):
            yield f"    default {before}; no configuration passed, so that none was taken"
        elif best is default:
            yield f"    default {before}, and nothing is faster by more than a hundredth"
        else:
            config = json.dumps(best.config)
            yield f"    default {before}, best {best.microseconds:.2f} us: {config}"
        yield f"    {len(self.trials) - len(failed)} measured, {len(failed)} skipped"
        for verdict, count in Counter(trial.verdict for trial in failed).items():
            reason = next(trial.reason for trial in failed if trial.verdict == verdict)
            yield f"    skipped {count}: {verdict}: {reason}"


Event = Notice | CaseStarted | ConfigTimed | Found
