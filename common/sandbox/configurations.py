"""The configurations of a solution's kernels: the harness draws them, or `study tune` sets them.

Where no GPU times the configurations, `triton.autotune` selects a drawn one, so that over its cases
a kernel runs in all of them. The draw depends on the case and on the kernel: all calls of a case
take the same configuration. As on a GPU, a configuration that does not fit is left out, the tuner's
hooks run, and in some cases the tuner launches a kernel several times before the launch that
counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.errors import OutOfResources, PTXASError

from common import wire
from common.arena import dtype_name
from common.sandbox.interpreter.operations import wrap
from common.sandbox.target import THREADS
from common.verdicts import Autotuned
from common.wire import UNDRAWN, ConfigurationDraw, Reply

if TYPE_CHECKING:
    from common.sandbox.session import Session

MISFITS = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
"""The errors of a launch for which Triton's autotuner leaves a configuration out."""
WARP = 32
"""The threads of a warp of the target that stands for the GPU."""
STATIC_ASSERT = "_new_static_assert"
"""The name of the interpreter's `tl.static_assert`, which raises a plain AssertionError."""


class Configurations:
    """The draw of the running call, and the configurations of its launches."""

    def __init__(self) -> None:
        """Start without a draw."""
        self.draw = UNDRAWN
        self._taken: dict[str, Autotuned] = {}

    def begin(self, draw: ConfigurationDraw | None) -> None:
        """Take the configurations of the following launches from a draw."""
        self.draw, self._taken = draw or UNDRAWN, {}

    def reply(self) -> Reply:
        """Return the drawn configurations since the last reply by kernel, as a part of a reply."""
        taken, self._taken = self._taken, {}
        return {"configurations": taken} if taken and self.draw is not UNDRAWN else {}

    def ordered(self, tuner: Any, pruned: list[Config]) -> list[Config]:
        """Return configurations in the order of preference that is drawn for the case.

        In as many successive positions as the tuner has configurations, each is first once.
        """
        if self.draw.position is None:
            return pruned
        every, (deal, start) = list(tuner.configs), divmod(self.draw.position, len(tuner.configs))
        dice = random.Random(f"{self.draw.seed} {tuner.base_fn.__name__} {deal}")
        dice.shuffle(every)
        ranks = {config: rank for rank, config in enumerate((*every[start:], *every[:start]))}
        return sorted(pruned, key=lambda config: ranks.get(config, len(ranks)))

    def add(self, tuner: Any, config: Config) -> None:
        """Add a launch's configuration: the parameters that differ among the tuner's."""
        every = [each.all_kwargs() for each in tuner.configs]
        values = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in config.all_kwargs().items()
            if any(each.get(name) != value for each in every)
        }
        launches, name = self.draw.launches, tuner.base_fn.__name__
        taken = self._taken.setdefault(name, Autotuned(len(every), launches, [])).values
        if values not in taken:
            taken.append(values)


CONFIGURATIONS = Configurations()


def install() -> None:
    """Make autotuners select the drawn configuration; call this once, before any launch."""
    wrap(Autotuner, "run", _run)
    wrap(Autotuner, "prune_configs", _prune_configs)
    wrap(Autotuner, "_bench", _bench)
    Autotuner.do_bench = property(lambda _: _launch_often)


def _run(run: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """Launch a kernel in the first configuration that fits, in the order of preference."""
    if len(tuner.configs) == 1:
        return run(tuner, *args, **kwargs)
    _forget(tuner)
    while True:
        tuner.pruned = []  # stays empty if the tuner knows the key
        try:
            result = run(tuner, *args, **kwargs)
        except Exception as error:
            tuner.misfits.append(tuner.best_config)
            if _is_misfit(error) and any(each not in tuner.misfits for each in tuner.pruned):
                tuner.cache.clear()
                continue
            if tuner.best_config:
                CONFIGURATIONS.add(tuner, tuner.best_config)
            raise
        CONFIGURATIONS.add(tuner, tuner.best_config)
        return result


def _forget(tuner: Any) -> None:
    """Let a tuner forget the selections of another case, or those before the case's first call."""
    draw, known = CONFIGURATIONS.draw, vars(tuner).get("draw", UNDRAWN)
    if (draw.seed, draw.position) != (known.seed, known.position) or (
        draw.launches and draw is not known
    ):
        tuner.cache.clear()
        tuner.draw = draw
    tuner.misfits, tuner.best_config = [], None
    tuner.cache_results = False  # on disk, where a selection would outlive the case


def _prune_configs(prune: Callable[..., Any], tuner: Any, kwargs: Any) -> list[Config]:
    """Return the configurations after pruning, in the order of preference."""
    pruned = CONFIGURATIONS.ordered(tuner, prune(tuner, kwargs))
    misfits = vars(tuner).get("misfits", ())
    tuner.pruned = [
        config for config in pruned if config not in misfits and config.num_warps * WARP <= THREADS
    ]
    return tuner.pruned or pruned


def _bench(
    bench: Callable[..., list[float]], tuner: Any, *args: Any, config: Config, **kwargs: Any
) -> list[float]:
    """Return equal times, of which the tuner selects the first.

    If the draw says so, launch that configuration as often as on a GPU, with the tuner's hooks.
    """
    if not (CONFIGURATIONS.draw.launches and config in tuner.pruned[:1]):
        return [0.0]
    tuner.best_config = config  # for the report, if the launch fails
    return bench(tuner, *args, config=config, **kwargs)


def _launch_often(launch: Callable[[], None], quantiles: Any) -> list[float]:
    for _ in range(CONFIGURATIONS.draw.launches):
        launch()
    return [0.0]


def _is_misfit(error: BaseException) -> bool:
    """Return whether Triton's autotuner would leave a configuration out for this error."""
    while error.__cause__ is not None and not isinstance(error, MISFITS):
        error = error.__cause__
    frame = error.__traceback__
    while frame and frame.tb_next:
        frame = frame.tb_next
    raised_by = frame.tb_frame.f_code.co_name if frame else ""
    return isinstance(error, MISFITS) or raised_by == STATIC_ASSERT


# --- kernels that `study tune` searches -----------------------------------------------------------


def tune(session: Session, request: wire.Tune) -> Reply:
    """Force configurations from now on; see docs/tuning.md.

    Return as `kernels`, the name, default and search space of each kernel. Return as `asked`,
    the shapes that the solution has looked up since the last request, without their
    configurations.
    """
    kernels = tuple(getattr(session.solution.module, "TUNED", ()))
    asked = [
        [kernel.name, [int(width) for width in widths], dtype_name(dtype), int(tokens)]
        for kernel in kernels
        for tokens, widths, dtype, *_ in kernel.asked
    ]
    for kernel in kernels:
        kernel.asked.clear()
        kernel.forced = {
            (tokens, tuple(widths), getattr(torch, dtype)): config
            for name, widths, dtype, tokens, config in request.choices
            if name == kernel.name
        }
    fields = ("name", "default", "space")
    described = [{field: getattr(kernel, field) for field in fields} for kernel in kernels]
    return {"kernels": described, "asked": asked}
