"""One decoder layer with the kernels of libraries, forward and backward: `docs/models.md`'s table.

    python -m tests.generators.layer    # on a GPU: docs/layer.json, and the table

Attention with RoPE on the queries and keys, and two experts of SwiGLU, of which a mask selects one
for each token: as CogVLM writes it, and with the rotary embedding and the experts of Liger, quack
and the house. A library that is not installed is left out. Without a GPU the layers are tiny, and
nothing is written: set TRITON_INTERPRET=1 for the house's kernels.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from common import stats
from common.measure.machine import versions
from common.paths import ROOT
from tests.support.corpora import in_the_docs

RECORD = ROOT / "docs" / "layer.json"
WIDTH = 128
"""Features of a head."""
SIZES = [(4096, 11008, 8192), (4096, 11008, 1024), (2048, 5632, 8192), (2048, 5632, 1024)]
"""Hidden and inner features, and tokens."""
TINY = [(256, 80, 40)]
WRONG = 0.1
"""The error from which on a layer is wrong; bfloat16 rounds to a part in 256."""
ROUNDS, LEAST = 9, 0.06
"""The rounds in which all layers are timed in turn, and the seconds of each layer in a round."""
FFN = "gate_proj", "down_proj", "up_proj"


class Eager(nn.Module):
    """The layer as models write it."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(hidden, eps=1e-5) for _ in range(2))
        self.projections = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        sizes = (hidden, inner), (inner, hidden), (hidden, inner)
        self.visual, self.textual = (
            nn.ModuleDict({n: nn.Linear(*s, bias=False) for n, s in zip(FFN, sizes, strict=True)})
            for _ in range(2)
        )

    def forward(self, x: Tensor, angles: Any, mask: Tensor) -> Tensor:
        """Return [1, s, hidden] for x of that shape, what `angles` returned, and a mask [s]."""
        before, after = self.norms
        to_q, to_k, to_v, to_x = self.projections
        q, k, v = (to(before(x)).unflatten(-1, (-1, WIDTH)) for to in (to_q, to_k, to_v))
        q, k, v = (t.transpose(1, 2) for t in (*self.turn(q, k, angles), v))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + to_x(attended.transpose(1, 2).flatten(2))
        return x + self.experts(after(x)[0], mask)[None]

    def angles(self, freqs: Tensor, dtype: torch.dtype) -> Any:
        """Return what a model computes once of angles, float32 [s, 1, 1, WIDTH]."""
        return freqs.cos()[:, 0].to(dtype), freqs.sin()[:, 0].to(dtype)

    def turn(self, q: Tensor, k: Tensor, angles: Any) -> tuple[Tensor, Tensor]:
        """Return q and k, [1, s, heads, WIDTH], turned."""
        cos, sin = angles

        def turned(t: Tensor) -> Tensor:
            first, second = t.chunk(2, -1)
            return t * cos + torch.cat((-second, first), dim=-1) * sin

        return turned(q), turned(k)

    def experts(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return what each token's expert returns, for x [s, hidden]."""
        out = torch.empty_like(x)
        for layers, chosen in ((self.visual, mask), (self.textual, ~mask)):
            rows = x[chosen]
            inner = self.gated(layers["gate_proj"](rows), layers["up_proj"](rows))
            out[chosen] = layers["down_proj"](inner)
        return out

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return silu(gate) * up."""
        return silu(gate) * up

    def rearrange(self) -> None:
        """Lay the weights as the library's users hold them."""


def liger() -> type[Eager]:
    """Return the layer with what Liger puts into a Llama."""
    from liger_kernel.ops.rope import LigerRopeFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    class Liger(Eager):
        def angles(self, freqs: Tensor, dtype: torch.dtype) -> Any:
            return [each.flatten(1)[None] for each in super().angles(freqs, dtype)]

        def turn(self, q: Tensor, k: Tensor, angles: Any) -> tuple[Tensor, Tensor]:
            q, k = LigerRopeFunction.apply(q.transpose(1, 2), k.transpose(1, 2), *angles)
            return q.transpose(1, 2), k.transpose(1, 2)

        def gated(self, gate: Tensor, up: Tensor) -> Tensor:
            return LigerSiLUMulFunction.apply(gate, up)

    return Liger


def quack() -> type[Eager]:
    """Return the layer with quack's rotary embedding, and its products as the board has them."""
    from quack.rotary import apply_rotary_emb

    gated = importlib.import_module("common.peers.quack.masked_ffn")._Gated

    class Quack(Eager):
        def angles(self, freqs: Tensor, dtype: torch.dtype) -> Any:
            return [t.flatten(1).chunk(2, -1)[0].contiguous() for t in super().angles(freqs, dtype)]

        def turn(self, q: Tensor, k: Tensor, angles: Any) -> tuple[Tensor, Tensor]:
            return apply_rotary_emb(q, *angles), apply_rotary_emb(k, *angles)

        def experts(self, x: Tensor, mask: Tensor) -> Tensor:
            out: Tensor = gated.apply(x, self.up, self.down, mask)
            return out

        def rearrange(self) -> None:
            both = [[expert[name].weight for name in FFN] for expert in (self.visual, self.textual)]
            up = [torch.stack((gate, up), dim=1).flatten(0, 1) for gate, _, up in both]
            self.up = nn.Parameter(torch.stack(up).detach())
            self.down = nn.Parameter(torch.stack([down for _, down, _ in both]).detach())
            del self.visual, self.textual

    return Quack


def house() -> type[Eager]:
    """Return the layer with the house's two functions."""
    sys.path.insert(0, str(ROOT / "contributors" / "house"))
    fast = importlib.import_module("fast")

    class House(Eager):
        def angles(self, freqs: Tensor, dtype: torch.dtype) -> Any:
            return freqs

        def turn(self, q: Tensor, k: Tensor, angles: Any) -> tuple[Tensor, Tensor]:
            return fast.rope_qk(q, k, angles, tensor_format="bshd")

        def experts(self, x: Tensor, mask: Tensor) -> Tensor:
            weights = [each[name].weight for each in (self.visual, self.textual) for name in FFN]
            return fast.masked_ffn(x, *weights, mask)

    return House


KINDS = {"eager": lambda: Eager, "Liger": liger, "quack": quack, "house/fast": house}


class Bench:
    """One size: its inputs, and the layers of each kind with the same weights."""

    def __init__(self, size: tuple[int, int, int], device: str, kinds: Iterable[str]) -> None:
        hidden, inner, tokens = size
        torch.manual_seed(0)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.x = torch.randn(1, tokens, hidden, device=device, dtype=dtype, requires_grad=True)
        self.upstream = torch.randn_like(self.x)
        spans = torch.rand(-(-tokens // 64), device=device) < 0.5  # images and text
        self.mask = spans.repeat_interleave(64)[:tokens]
        rates = 10000.0 ** -(torch.arange(0, WIDTH, 2, device=device) / WIDTH)
        half = torch.outer(torch.arange(tokens, device=device), rates)
        self.freqs = torch.cat((half, half), dim=-1)[:, None, None]
        with torch.device(device):  # a CPU draws two billion weights for a minute
            exact = Eager(hidden, inner).to(dtype)
        self.steps: dict[str, Callable[[], dict[str, Tensor]]] = {}
        self.absent: dict[str, str] = {}
        for kind in kinds:
            try:
                with torch.device(device):
                    layer = KINDS[kind]()(hidden, inner).to(dtype)
            except ImportError as error:
                self.absent[kind] = str(error)
                continue
            layer.load_state_dict(exact.state_dict())
            layer.rearrange()
            self.steps[kind] = self.step(layer, layer)
            self.steps[f"{kind}, compiled"] = self.step(layer, torch.compile(layer))
        double = torch.float32 if device == "cuda" else torch.float64
        self.exact = self.step(exact.to(double), exact)()

    def step(self, layer: Eager, call: Callable[..., Tensor]) -> Callable[[], dict[str, Tensor]]:
        """Return a function that runs forward and backward; it returns the output and gradients."""
        dtype = next(layer.parameters()).dtype
        angles = layer.angles(self.freqs, dtype)
        x, upstream = (each.detach().to(dtype) for each in (self.x, self.upstream))
        x.requires_grad_()

        def run() -> dict[str, Tensor]:
            layer.zero_grad()
            x.grad = None
            out = call(x, angles, self.mask.clone())  # each batch of a model has a new mask
            out.backward(upstream)
            grads = {name: each.grad for name, each in layer.named_parameters()}
            return {"output": out.detach(), "x": x.grad, **grads}  # type: ignore[dict-item]

        return run

    def errors(self, name: str) -> tuple[float, float, str]:
        """Return the relative errors of the output and of the gradient that errs most; its name."""
        found = {
            key: float((value - self.exact[key]).norm() / self.exact[key].norm())
            for key, value in self.steps[name]().items()
            if key in self.exact
        }
        output, worst = found.pop("output"), max(found, key=lambda key: found[key])
        return output, found[worst], worst

    def memory(self, name: str) -> int:
        """Return the most bytes that a step takes beyond weights and inputs, with gradients."""
        self.steps[name]()
        held = torch.cuda.memory_allocated()  # with the gradients, which a step begins by freeing
        torch.cuda.reset_peak_memory_stats()
        results = self.steps[name]()
        freed = sum(value.nbytes for key, value in results.items() if key != "output")
        return torch.cuda.max_memory_allocated() - held + freed

    def times(self, names: list[str], rounds: int) -> dict[str, list[float]]:
        """Return each step's milliseconds in each round; its steps follow each other."""
        found: dict[str, list[float]] = {name: [] for name in names}
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(1 + rounds):
            for name in names:
                run = self.steps[name]
                run()
                count = int(LEAST * 1000 / min(found[name])) + 1 if found[name] else 3
                start.record()
                for _ in range(count):
                    run()
                end.record()
                end.synchronize()
                found[name].append(start.elapsed_time(end) / count)
        return {name: times[1:] for name, times in found.items()}


def measured(size: tuple[int, int, int], kinds: Iterable[str], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each kind, plain and compiled, which the device can run."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    bench, rows = Bench(size, device, kinds), []
    for name in bench.steps:
        row: dict[str, Any] = {"hidden": size[0], "tokens": size[2], "layer": name}
        try:
            row["output"], row["gradient"], row["worst"] = bench.errors(name)
            if device == "cuda":
                row["bytes"] = bench.memory(name)
        except Exception as error:
            row["absent"] = f"{type(error).__name__}: {error}"[:300]
        rows.append(row)
    names = [row["layer"] for row in rows if "absent" not in row]
    for name, times in bench.times(names, rounds).items() if device == "cuda" else ():
        row = next(row for row in rows if row["layer"] == name)
        row["ms"], row["interval"] = statistics.median(times), stats.interval(times)
    for kind, why in bench.absent.items():
        rows.append({"hidden": size[0], "tokens": size[2], "layer": kind, "absent": why})
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def table(runs: list[dict[str, Any]]) -> str:
    """Return the table of the record's runs, in Markdown; a wrong layer has no times."""
    rows = {(r["hidden"], r["tokens"], r["layer"]): r for run in runs for r in run["rows"]}
    lines = [["hidden", "tokens", "", *KINDS], ["---:", "---:", "---", *["---:"] * len(KINDS)]]
    for hidden, _, tokens in (size for size in SIZES if (size[0], size[2], "eager") in rows):
        for how, shown in SHOWN.items():
            suffix = ", compiled" * ("compiled" in how)
            found = [rows.get((hidden, tokens, kind + suffix), {}) for kind in KINDS]
            cells = [cell_of(row, shown) for row in found]
            lines.append([f"{hidden:,}", f"{tokens:,}", how, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell_of(row: dict[str, Any], shown: Callable[[dict[str, Any]], str]) -> str:
    """Return what is shown of a row."""
    if "ms" not in row:
        return "–"
    return shown(row) if max(row["output"], row["gradient"]) < WRONG else "wrong"


def _milliseconds(row: dict[str, Any]) -> str:
    return f"{row['ms']:.2f}"


SHOWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "ms": _milliseconds,
    "ms, compiled": _milliseconds,
    "MiB": lambda row: f"{row['bytes'] / 2**20:,.0f}",
    "MiB, compiled": lambda row: f"{row['bytes'] / 2**20:,.0f}",
    "error of the output, of a gradient": lambda row: f"{row['output']:.1e}, {row['gradient']:.1e}",
}


def main() -> None:
    """Measure every size, and on a GPU write the record and the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="0 only compiles")
    parser.add_argument("--kind", choices=KINDS, action="append", help="one of these layers alone")
    parser.add_argument("--hidden", type=int, help="one width alone: a run of its own")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    peers = {"liger-kernel", "quack-kernels"} & {
        each.name.replace("_", "-") for each in metadata.distributions()
    }
    sizes = SIZES if gpu else TINY
    for hidden in [options.hidden] if options.hidden else dict.fromkeys(size[0] for size in sizes):
        rows = list[dict[str, Any]]()
        for size in (size for size in sizes if size[0] == hidden):
            rows += measured(size, options.kind or KINDS, options.rounds)
            torch._dynamo.reset()
        if gpu and options.rounds and not options.kind:
            run = {
                "hidden": hidden,
                "device": torch.cuda.get_device_name(),
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "versions": versions() | {name: metadata.version(name) for name in sorted(peers)},
                "rows": rows,
            }
            runs = json.loads(RECORD.read_text()) if RECORD.exists() else []
            runs = [*(each for each in runs if each["hidden"] != hidden), run]
            RECORD.write_text(json.dumps(runs, indent=1) + "\n")
            in_the_docs("layer", table(runs), True, "models")


if __name__ == "__main__":
    main()
