"""Calls that the board does not time: compiled ones, stacks of layers, and new lengths.

    python -m tests.generators.calls    # on a GPU: two tables of docs/masked.md

Plain torch and the house's functions, in loops of calls with the same arguments. Without a GPU the
tables are printed.
"""

import random
import statistics
import time
from functools import partial

import torch
import triton
from torch.utils.benchmark import Timer

from common import ops
from common.ops._names import named
from tests.generators.layer import package
from tests.support.corpora import in_the_docs

CASES = {
    "masked_ffn": "2048x1024x2048-bfloat16-span",
    "masked_linear": "2048x1024x1024-bfloat16-span",
    "rope_qk": "bshd-2x4096x32x8x128-bfloat16-paired",
}
LAYERS = 8
LENGTHS = range(1500, 2600, 7)
ROUNDS, CALLS = (7, 50) if torch.cuda.is_available() else (1, 1)


def arguments(op, trained=True):
    """Return the arguments of an op's case by name; frozen weights require no gradients."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    drawn = ops.load(op).draw(named(ops.load(op), CASES[op]), torch.Generator(device))
    for name in drawn:
        if name in ("x", "q", "k") or (name[0] in "wu" and trained):
            drawn[name].requires_grad_()
    return drawn


def step(call, drawn):
    """Run a call with these arguments forward and, unless in inference, backward."""
    outs = call(**drawn)
    if torch.is_grad_enabled():
        outs = outs if isinstance(outs, tuple) else (outs,)
        leaves = [each for each in drawn.values() if getattr(each, "requires_grad", False)]
        torch.autograd.grad(outs, leaves, [torch.ones_like(out) for out in outs])


def stack(call, copied, mask, **drawn):
    """Return x after layers with one mask, that of the last step or a copy."""
    mask = mask.clone() if copied else mask
    for _ in range(LAYERS):
        drawn["x"] = call(**drawn, mask=mask)
    return drawn["x"]


def now():
    """Return the time in seconds, as soon as the GPU has nothing to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def microseconds(calls, drawn):
    """Return the time of each call, the median of loops in turn, after one round that warms up."""
    timers = [Timer("step(call, drawn)", globals={"step": step, "call": call, "drawn": drawn})
              for call in calls]  # fmt: skip
    rounds = [[timer.timeit(CALLS).mean * 1e6 for timer in timers] for _ in range(ROUNDS + 1)]
    return [statistics.median(times) for times in zip(*rounds[1:], strict=True)]


def of_calls(fast):
    """Yield the lines of a table: the microseconds of a call, plain and compiled."""
    yield ["microseconds", "plain torch", "compiled", "house/fast", "compiled"]
    yield ["---", *["---:"] * 4]
    for op, case in CASES.items():
        both = ops.load(op).reference, getattr(fast, op)
        kinds = {f"{op} {case}": both}
        if op == "masked_ffn":
            kinds[f"{LAYERS} layers, one mask"] = [partial(stack, each, False) for each in both]
            kinds[f"{LAYERS} layers, a new mask"] = [partial(stack, each, True) for each in both]
        for what, calls in kinds.items():
            torch._dynamo.reset()
            every = [each for call in calls for each in (call, torch.compile(call))]
            for how in ("training", "inference", "frozen weights"):
                if how == "frozen weights" and op == "rope_qk":
                    continue
                with torch.inference_mode(how == "inference"):
                    times = microseconds(every, arguments(op, how == "training"))
                yield [f"{what}, {how}", *(f"{each:.0f}" for each in times)]


def of_lengths(fast):
    """Yield the lines of a table: a step of masked_linear with a length, new and known."""
    yield ["", "compiled after the third length", "ms, new length", "ms, known length"]
    yield ["---", "---:", "---:", "---:"]
    lengths, compiled = random.Random(0).sample(LENGTHS, len(LENGTHS)), []
    triton.knobs.compilation.listener = lambda **_: compiled.append(len(times))
    drawn = arguments("masked_linear")
    calls = {"plain torch": ops.load("masked_linear").reference, "house/fast": fast.masked_linear}
    for name, call in calls.items():
        times = []
        for length in [*lengths, *lengths]:
            start = now()
            step(call, drawn | {each: drawn[each][:length] for each in ("x", "mask")})
            times.append((now() - start) * 1e3)
        late = sum(at >= 3 for at in compiled)
        passes = times[3 : len(lengths)], times[len(lengths) :]
        yield [name, f"{late} kernels", *(f"{statistics.median(each):.2f}" for each in passes)]


def main():
    """Measure; on a GPU write the tables."""
    fast = package()
    for name, lines in (("lengths", of_lengths(fast)), ("calls", of_calls(fast))):
        table = []
        for line in lines:
            table.append(f"| {' | '.join(line)} |")
            print(table[-1], flush=True)
            if torch.cuda.is_available():  # a run that is interrupted keeps what it measured
                in_the_docs(name, "\n".join(table), True, "masked")


if __name__ == "__main__":
    main()
