"""Search the fastest configurations of quack and Liger: `common/peers/*/configs/tuned.json`.

    timeout 200 python -m tests.generators.tuned_peers [--again] [LIBRARY...]    # on a GPU

Each library searches for itself, with its own candidates and its own clock, whose inputs are not in
the L2 cache: what it would do at a user's first call, for every case of the board, then of its
plots. All cores compile the candidates, before the GPU measures them. What is found is written at
once, and a later search leaves it out, so that a search that was ended is continued.
"""

import argparse
import contextlib
import functools
import importlib
import json
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from importlib import metadata
from unittest import mock

import torch

from common import ops
from common.paths import PEERS
from tests.support.corpora import in_the_docs

OPS = {"quack": ("masked_ffn", "masked_linear"), "liger_kernel": ("masked_ffn",)}
"""The ops for which each library's adapters have configurations."""
DISTRIBUTIONS = {"quack": "quack-kernels", "liger_kernel": "liger-kernel"}
TOKENS, WIDTHS = 64, (256, 512)
"""The sizes of layers whose kernels are compiled: quack compiles the same ones for all sizes."""
BRIEFLY = {"warmup_target_ms": 10.0, "n_timed_calls": 20}
"""The milliseconds of warm-up and the timed calls of quack's candidates, instead of 200 each."""


def file_of(library):
    """Return the path of a library's configurations."""
    return PEERS / library / "configs" / "tuned.json"


def table():
    """Return the table of the cases whose first products' configurations are kept, in Markdown."""
    lines = ["| GPU, library and version | cases |", "|---|---|"]
    for library in OPS:
        for where in json.loads(file_of(library).read_text()):
            shown = []
            for name, params in cases(library):
                tokens = f"{params['tokens']}x" if library == "quack" else ""
                widths = "x".join(map(str, params["widths"]))
                if is_kept(library, where, name, params):
                    shown.append(f"{name} {tokens}{widths}-{params['dtype']}")
            lines.append(f"| {where} | {', '.join(shown)} |")
    return "\n".join(lines)


def is_kept(library, where, name, params):
    """Return whether a case's first product is kept: all products of a case are saved at once."""
    tokens, (first, second), dtype = (params[key] for key in ("tokens", "widths", "dtype"))
    columns = 2 * second if name == "masked_ffn" else second
    begin = {
        "quack": f"(({tokens}, {first}), (2, 1), torch.{dtype}, (2, {first}, {columns}), (2, 1, 2)",
        "liger_kernel": f"_fused_up_proj_swiglu_kernel({first}, {second}, 'torch.{dtype}'",
    }
    kept = json.loads(file_of(library).read_text()).get(where, {})
    return any(begin[library] in product for product in kept)


def cases(library):
    """Return op and parameters of each case, the board's before its plots', the largest first.

    Of equal sizes one stands for all; Liger does not distinguish numbers of tokens either.
    """
    found = {}
    for tier in ("board", "plot"):
        every = [(name, case) for name in OPS[library] for case in ops.load(name).cases(tier)]
        every.sort(key=lambda each: -each[1].tokens * math.prod(each[1].widths))
        for name, case in every:
            tokens = case.tokens if library == "quack" else None
            found.setdefault((name, tokens, case.widths, case.dtype), (name, case.params))
    return [*found.values()]


def step(library, name, params, **changed):
    """Run a library's adapter for a case of an op, forward and backward."""
    op = ops.load(name)
    case = replace(op.of_params(params), **changed)
    drawn = op.draw(case, torch.Generator("cuda").manual_seed(0))
    leaves = [each.requires_grad_(each.is_floating_point()) for each in drawn.values()]
    out = importlib.import_module(f"common.peers.{library}.{name}").prepare(*leaves)()
    out.backward(torch.randn_like(out))
    torch.cuda.synchronize()


def compile_quack(every):
    """Compile all candidates of all products in quack's own processes."""
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
        for (name, _), params in {(name, each["dtype"]): each for name, each in every}.items():
            step("quack", name, params, tokens=TOKENS, widths=WIDTHS)
        for compiling in [*pool._futures.values()]:
            compiling.result()


def search_quack(name, params):
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
        step("quack", name, params)
    return found


def product(tuner, key):
    """Return the name under which quack's adapter looks up a product: its key without digests."""
    return f"{tuner.fn.__name__.rpartition('_')[0]}{key[len(tuner.keys) :]}"


def search_liger(name, params):
    """Return by kernel, widths and dtypes what Liger's search finds for a case."""
    from triton.runtime._async_compile import AsyncCompileMode
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    from common.peers.liger_kernel.masked_ffn import fused_moe_kernels

    def submit(tuner, *args, **kwargs):
        """Hand each candidate to the threads, launch none; what follows computes with garbage."""
        for config in tuner.configs:
            tuner.fn.run(*args, **kwargs | {"warmup": True}, **config.all_kwargs())

    with (
        ThreadPoolExecutor(os.cpu_count()) as threads,  # Triton compiles without Python's lock
        AsyncCompileMode(threads, ignore_errors=True),
        mock.patch.object(Autotuner, "run", submit),
        torch.autograd.set_multithreading_enabled(False),  # the mode holds in this thread alone
    ):
        step("liger_kernel", name, params)
    tuners = [each for each in vars(fused_moe_kernels).values() if isinstance(each, Autotuner)]
    for tuner in tuners:
        tuner.do_bench = functools.partial(do_bench, warmup=10, rep=20)  # ms; 25, 100
    step("liger_kernel", name, params)
    return {
        f"{tuner.base_fn.__name__}{key}": {
            field: value for field, value in vars(config).items() if value is not None
        }
        for tuner in tuners
        for key, config in tuner.cache.items()
    }


SEARCH = {"quack": search_quack, "liger_kernel": search_liger}


def here(library):
    """Return under which name a library's configurations for this GPU are kept."""
    name = DISTRIBUTIONS[library]
    return f"{torch.cuda.get_device_name()}, {name} {metadata.version(name)}"


def save(library, found):
    """Add configurations to the file, a line for each product, and the cases to the docs."""
    saved, where = json.loads(file_of(library).read_text()), here(library)
    saved[where] = dict(sorted((saved.get(where, {}) | found).items()))
    texts = []
    for where, products in saved.items():
        lines = (f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in products.items())
        texts.append(f" {json.dumps(where)}: {{\n" + ",\n".join(lines) + "\n }")
    file_of(library).write_text("{\n" + ",\n".join(texts) + "\n}\n")
    in_the_docs("tuned", table(), True, "peers")


def main(libraries, again):
    """Search for the libraries in turn."""
    start = time.monotonic()

    def say(*what):
        print(f"{time.monotonic() - start:6.1f} s:", *what, flush=True)

    os.environ["LIGER_FUSED_MOE_AUTOTUNE"] = "1"
    os.environ["QUACK_COMPILE_WORKERS"] = str(os.cpu_count())
    for library in libraries:
        where = here(library)
        every = [each for each in cases(library) if again or not is_kept(library, where, *each)]
        say(library, f"{len(every)} cases to search")
        if library == "quack" and every:
            compile_quack(every)
            say(library, "is compiled")
        for name, params in every:
            case = ops.load(name).of_params(params).name
            try:
                found = SEARCH[library](name, params)
            except Exception as error:  # another case may do
                say(library, name, case, repr(error))
            else:
                save(library, found)
                say(library, name, case, f"{len(found)} products")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="also search what is kept")
    parser.add_argument("libraries", nargs="*", help=f"{' or '.join(OPS)}; by default both")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("tuned_peers needs a GPU")
    main(options.libraries or OPS, options.again)
