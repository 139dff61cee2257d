"""Search the fastest configurations of quack's products: `common/peers/quack/configs/tuned.json`.

    python -m tests.generators.tuned_peers [SECONDS]    # on GPUs of one model

quack searches for itself, with its own candidates and its own clock, whose inputs are not in the L2
cache: what it would do at a user's first call, for every case of the board and of its plots. First
all candidates are compiled, by as many processes as there are cores. Then each GPU takes cases.
What is found is written at once, so that a search that ends early keeps it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import math
import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from importlib import metadata
from unittest import mock

import torch

from common import ops
from common.paths import PEERS
from tests.support.corpora import in_the_docs

FILE = PEERS / "quack" / "configs" / "tuned.json"
OPS = ("masked_ffn", "masked_linear")
TOKENS, WIDTHS = 64, (256, 512)
"""The sizes of layers whose kernels are compiled: quack compiles the same ones for all sizes."""
BRIEFLY = {"warmup_target_ms": 10.0, "n_timed_calls": 20}
"""The milliseconds of warm-up and the timed calls of a candidate, instead of 200 each."""


def table():
    """Return the table of the cases whose first products' configurations are kept, in Markdown."""
    lines = ["| GPU and version | cases |", "|---|---|"]
    for where, products in json.loads(FILE.read_text()).items():
        shown, every = [], " ".join(products)
        for name, params in cases():
            tokens, (first, second), dtype = (params[key] for key in ("tokens", "widths", "dtype"))
            columns = 2 * second if name == "masked_ffn" else second
            x = f"({tokens}, {first}), (2, 1), torch.{dtype}"
            if f"({x}, (2, {first}, {columns}), (2, 1, 2)" in every:
                shown.append(f"{name} {tokens}x{first}x{second}-{dtype}")
        lines.append(f"| {where} | {', '.join(shown)} |")
    return "\n".join(lines)


def cases():
    """Return op and parameters of each case of the board and of its plots, the largest first.

    Of equal sizes one stands for all.
    """
    tiers = itertools.product(("board", "plot"), OPS)
    every = [(name, case) for tier, name in tiers for case in ops.load(name).cases(tier)]
    found = {}
    for name, case in sorted(every, key=lambda each: -each[1].tokens * math.prod(each[1].widths)):
        found.setdefault((name, case.tokens, case.widths, case.dtype), (name, case.params))
    return [*found.values()]


def step(name, params, **changed):
    """Run quack's adapter for a case of an op, forward and backward."""
    op = ops.load(name)
    case = replace(op.of_params(params), **changed)
    drawn = op.draw(case, torch.Generator("cuda").manual_seed(0))
    leaves = [each.requires_grad_(each.is_floating_point()) for each in drawn.values()]
    out = importlib.import_module(f"common.peers.quack.{name}").prepare(*leaves)()
    out.backward(torch.randn_like(out))
    torch.cuda.synchronize()


def compiled():
    """Compile all candidates of all products in quack's own processes; return how many."""
    from quack.autotuner import Autotuner
    from quack.cache.async_compile import CompilePending, pool_scope

    def submit(tuner, *args, **kwargs):
        """Hand each candidate to the processes, launch none; what follows computes with garbage."""
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        candidates = tuner.prune_configs(kwargs)
        for config in candidates:
            with contextlib.suppress(CompilePending, RuntimeError):
                tuner.fn(*args, **kwargs, **config.all_kwargs())
        tuner.best_config = candidates[0]
        return None, 1, False, None  # what `gemm` expects

    with pool_scope() as pool, mock.patch.object(Autotuner, "__call__", submit):
        for (name, _), params in {(name, each["dtype"]): each for name, each in cases()}.items():
            step(name, params, tokens=TOKENS, widths=WIDTHS)
        for compiling in [*pool._futures.values()]:
            compiling.result()
        return len(pool._futures)


def searched(name, params):
    """Return by product what quack's search finds for a case."""
    from quack import autotuner
    from quack.gemm_config import GemmConfig

    importlib.import_module(f"common.peers.quack.{name}")  # which lets quack search nothing
    plain, found = asdict(GemmConfig()), {}

    def searching(tuner, key, configs, search):
        search()
        fields = asdict(tuner.cache[key].kwargs["config"])
        other = {field: value for field, value in fields.items() if value != plain[field]}
        found[product(tuner, key)] = other

    measured = functools.partial(autotuner._bench_cuda_graph_l2_rotate, **BRIEFLY)
    with (
        mock.patch.object(autotuner, "_bench_cuda_graph_l2_rotate", measured),
        mock.patch.object(autotuner, "_gpu_warmup"),  # one search follows another
        mock.patch.object(autotuner.Autotuner, "check_disk_cache", searching),
    ):
        step(name, params)
    return found


def product(tuner, key):
    """Return the name under which quack's adapter looks up a product: its key without digests."""
    return f"{tuner.fn.__name__.rpartition('_')[0]}{key[len(tuner.keys) :]}"


def begin(gpus):
    """Start a process: a group of its own, and one of the GPUs."""
    os.setpgid(0, 0)
    os.environ["QUACK_COMPILE_WORKERS"] = str(os.cpu_count())
    torch.cuda.set_device(gpus.get())


@contextlib.contextmanager
def processes():
    """Yield an executor of a process for each GPU; none of them outlives the block."""
    context, count = multiprocessing.get_context("spawn"), torch.cuda.device_count()
    gpus = context.Queue()
    for gpu in range(count):
        gpus.put(gpu)
    executor = ProcessPoolExecutor(count, context, begin, (gpus,))
    try:
        yield executor
    finally:
        for process in [*executor._processes]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)  # with the processes that quack started
        executor.shutdown(cancel_futures=True)


def save(found):
    """Add configurations to the file, a line for each product, and the cases to the docs."""
    saved = json.loads(FILE.read_text())
    here = f"{torch.cuda.get_device_name()}, quack-kernels {metadata.version('quack-kernels')}"
    saved[here] = dict(sorted((saved.get(here, {}) | found).items()))
    texts = []
    for where, products in saved.items():
        lines = (f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in products.items())
        texts.append(f" {json.dumps(where)}: {{\n" + ",\n".join(lines) + "\n }")
    FILE.write_text("{\n" + ",\n".join(texts) + "\n}\n")
    in_the_docs("tuned", table(), True, "peers")


def main(seconds="3600"):
    """Search until the time is over."""
    start = time.monotonic()

    def say(*what):
        print(f"{time.monotonic() - start:6.1f} s:", *what, flush=True)

    def left():
        return max(start + float(seconds) - time.monotonic(), 0)

    with processes() as executor, contextlib.suppress(TimeoutError):
        say(executor.submit(compiled).result(left()), "kernels are compiled")
        searches = {executor.submit(searched, *each): each for each in cases()}
        for search in as_completed(searches, left()):
            name, params = searches[search]
            if not (error := search.exception()):
                save(search.result())
            case = ops.load(name).of_params(params).name
            say(name, case, error or f"{len(search.result())} products")
    say("done" if left() else "out of time")


if __name__ == "__main__":
    main(*sys.argv[1:])
