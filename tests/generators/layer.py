"""One decoder layer with the kernels of libraries, forward and backward: `docs/models.md`'s table.

    python -m tests.generators.layer [HIDDEN...]    # on a GPU: docs/layer.json, and the table

Attention with RoPE on the queries and keys, and two experts of SwiGLU, of which a mask selects one
for each token: as CogVLM writes it, and with the rotary embedding and the experts of Liger, quack
and the house. A library that is not installed is left out. Without a GPU a tiny layer is compared,
and nothing is written.
"""

import importlib
import json
import statistics
import sys
from datetime import UTC, datetime
from functools import partial

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from common import stats
from common.measure.machine import versions
from common.paths import ROOT
from tests.support.corpora import in_the_docs

RECORD = ROOT / "docs" / "layer.json"
WIDTH = 128
"""Features of a head."""
SIZES, TOKENS = {4096: 11008, 2048: 5632}, (8192, 1024)
"""Inner features by hidden ones, and the numbers of tokens."""
WRONG = 0.1
"""The error from which on a layer is wrong; bfloat16 rounds to a part in 256."""
ROUNDS, CALLS = 9, 10
"""The rounds in which all layers are timed in turn, and the calls of each layer in a round."""
FFN = "gate", "down", "up"
SHOWN = {
    "ms": "{ms:.2f}",
    "ms, compiled": "{ms:.2f}",
    "MiB": "{mib:,.0f}",
    "MiB, compiled": "{mib:,.0f}",
    "error of the output, of a gradient": "{output:.1e}, {gradient:.1e}",
}


class Eager:
    """The layer as models write it; `w` has its weights by name."""

    def __call__(self, x, w, angles, mask):
        """Return [1, s, hidden] for x of that shape, what `angles` returned, and a mask [s]."""
        normed = rms_norm(x, w["before"].shape, w["before"])
        q, k, v = (linear(normed, w[name]).unflatten(-1, (-1, WIDTH)) for name in "qkv")
        q, k, v = (t.transpose(1, 2) for t in (*self.turn(q, k, *angles), v))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(attended.transpose(1, 2).flatten(2), w["o"])
        return x + self.experts(rms_norm(x, w["after"].shape, w["after"])[0], w, mask)[None]

    def angles(self, freqs, dtype):
        """Return what a model computes once of angles, float32 [s, 1, 1, WIDTH]."""
        return freqs.cos()[:, 0].to(dtype), freqs.sin()[:, 0].to(dtype)

    def turn(self, q, k, cos, sin):
        """Return q and k, [1, s, heads, WIDTH], turned."""
        halves = ((t, *t.chunk(2, -1)) for t in (q, k))
        return [t * cos + torch.cat((-b, a), dim=-1) * sin for t, a, b in halves]

    def experts(self, x, w, mask):
        """Return what each token's expert returns, for x [s, hidden]."""
        out = torch.empty_like(x)
        for expert, chosen in (("visual", mask), ("textual", ~mask)):
            gate, down, up = (w[f"{expert} {name}"] for name in FFN)
            rows = x[chosen]
            out[chosen] = linear(self.gated(linear(rows, gate), linear(rows, up)), down)
        return out

    def gated(self, gate, up):
        """Return silu(gate) * up."""
        return silu(gate) * up

    def held(self, w):
        """Return the weights as the library's users hold them."""
        return w


def liger():
    """Return the layer with what Liger puts into a Llama."""
    from liger_kernel.ops.rope import LigerRopeFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    class Liger(Eager):
        def angles(self, freqs, dtype):
            return [each.flatten(1)[None] for each in super().angles(freqs, dtype)]

        def turn(self, q, k, cos, sin):
            turned = LigerRopeFunction.apply(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
            return [t.transpose(1, 2) for t in turned]

        def gated(self, gate, up):
            return LigerSiLUMulFunction.apply(gate, up)

    return Liger()


def quack():
    """Return the layer with quack's rotary embedding, and its products as the board has them."""
    from quack.rotary import apply_rotary_emb

    peer = importlib.import_module("common.peers.quack.masked_ffn")

    class Quack(Eager):
        def angles(self, freqs, dtype):
            return [t.flatten(1).chunk(2, -1)[0].contiguous() for t in super().angles(freqs, dtype)]

        def turn(self, q, k, cos, sin):
            return [apply_rotary_emb(t, cos, sin) for t in (q, k)]

        def experts(self, x, w, mask):
            return peer._Gated.apply(x, w["up"], w["down"], peer.Routing.of(mask))

        def held(self, w):
            both = [[w[f"{expert} {name}"] for name in FFN] for expert in ("visual", "textual")]
            up = [torch.stack((gate, up), dim=1).flatten(0, 1) for gate, _, up in both]
            others = {name: each for name, each in w.items() if " " not in name}
            down = torch.stack([each for _, each, _ in both])
            return others | {"up": torch.stack(up), "down": down}

    return Quack()


def package():
    """Return the house's package of functions for models."""
    sys.path.insert(0, str(ROOT / "contributors" / "house"))
    return importlib.import_module("fast")


def house():
    """Return the layer with the house's two functions."""
    fast = package()

    class House(Eager):
        def angles(self, freqs, dtype):
            return (freqs,)

        def turn(self, q, k, freqs):
            return fast.rope_qk(q, k, freqs, tensor_format="bshd")

        def experts(self, x, w, mask):
            weights = [w[f"{expert} {name}"] for expert in ("visual", "textual") for name in FFN]
            return fast.masked_ffn(x, *weights, mask)

    return House()


KINDS = {"eager": Eager, "Liger": liger, "quack": quack, "house/fast": house}


def drawn(hidden, inner, tokens, device):
    """Return x and an upstream gradient, the weights, the angles and a mask of a size."""
    random = partial(torch.randn, device=device, dtype=torch.bfloat16)
    shapes = {"gate": (inner, hidden), "down": (hidden, inner), "up": (inner, hidden)}
    shapes = {f"{expert} {n}": shapes[n] for expert in ("visual", "textual") for n in FFN}
    shapes |= dict.fromkeys("qkvo", (hidden, hidden))
    w = {name: random(*shape) / shape[1] ** 0.5 / 2 for name, shape in shapes.items()}
    w |= {name: torch.ones_like(random(hidden)) for name in ("before", "after")}
    rates = 10000.0 ** -(torch.arange(0, WIDTH, 2, device=device) / WIDTH)
    half = torch.outer(torch.arange(tokens, device=device), rates)
    spans = torch.rand(-(-tokens // 64), device=device) < 0.5  # images and text
    x, upstream = random(2, 1, tokens, hidden)
    freqs = torch.cat((half, half), dim=-1)[:, None, None]
    return x, upstream, w, freqs, spans.repeat_interleave(64)[:tokens]


def step(call, angles, x, upstream, w, mask):
    """Run forward and backward, and return the output and the gradients by name."""
    leaves = {"x": x.detach().requires_grad_()}
    leaves |= {name: each.detach().requires_grad_() for name, each in w.items()}
    out = call(leaves["x"], leaves, angles, mask.clone())  # each batch of a model has a new mask
    gradients = torch.autograd.grad(out, [*leaves.values()], upstream)
    return {"output": out.detach()} | dict(zip(leaves, gradients, strict=True))


def memory(run):
    """Return the most bytes that a step takes beyond weights and inputs, with gradients."""
    run()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - held


def milliseconds(run):
    """Return the time of one of several calls that follow each other."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    start.record()
    for _ in range(CALLS):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / CALLS


def measured(hidden, inner, tokens, device):
    """Return a row for each layer, plain and compiled, with the same weights."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, upstream, w, freqs, mask = drawn(hidden, inner, tokens, device)
    eager, exact = Eager(), {name: each.float() for name, each in w.items()}
    angles = eager.angles(freqs, torch.float32)
    wanted = step(eager, angles, x.float(), upstream.float(), exact, mask)
    rows, steps = [], []
    for kind, make in KINDS.items():
        try:
            layer = make()
        except ImportError:
            continue
        for name, call in ((kind, layer), (f"{kind}, compiled", torch.compile(layer))):
            angles, weights = layer.angles(freqs, x.dtype), layer.held(w)
            steps.append(partial(step, call, angles, x, upstream, weights, mask))
            errors = {n: float((each - wanted[n]).norm() / wanted[n].norm())
                      for n, each in steps[-1]().items() if n in wanted}  # fmt: skip
            row = {"hidden": hidden, "tokens": tokens, "layer": name}
            rows.append(row | {"output": errors.pop("output"), "gradient": max(errors.values())})
    if device == "cuda":
        times = zip(*([*map(milliseconds, steps)] for _ in range(ROUNDS)), strict=True)
        for row, run, several in zip(rows, steps, times, strict=True):
            row["bytes"], row["ms"] = memory(run), statistics.median(several)
            row["interval"] = stats.interval(several)
    print(*rows, sep="\n", flush=True)
    return rows


def table(runs):
    """Return the table of the record's runs, in Markdown; a wrong layer has no times."""
    rows = {(r["hidden"], r["tokens"], r["layer"]): r for run in runs for r in run["rows"]}

    def cell(row, shown):
        if not row:
            return "–"
        right = max(row["output"], row["gradient"]) < WRONG
        return shown.format(**row, mib=row["bytes"] / 2**20) if right else "wrong"

    lines = [["hidden", "tokens", "", *KINDS], ["---:", "---:", "---", *["---:"] * len(KINDS)]]
    for hidden, tokens in dict.fromkeys(key[:2] for key in rows):
        for how, shown in SHOWN.items():
            names = [kind + ", compiled" * ("compiled" in how) for kind in KINDS]
            cells = [cell(rows.get((hidden, tokens, name)), shown) for name in names]
            lines.append([f"{hidden:,}", f"{tokens:,}", how, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(*widths):
    """Measure these hidden features, by default all; on a GPU write the record and the table."""
    if not torch.cuda.is_available():
        measured(256, 80, 40, "cpu")
        return
    for hidden in widths or SIZES:
        rows = [row for n in TOKENS for row in measured(hidden, SIZES[hidden], n, "cuda")]
        run = {
            "hidden": hidden,
            "device": torch.cuda.get_device_name(),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "rows": rows,
        }
        runs = [each for each in json.loads(RECORD.read_text()) if each["hidden"] != hidden]
        RECORD.write_text(json.dumps([*runs, run], indent=1) + "\n")
        in_the_docs("layer", table([*runs, run]), True, "models")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
