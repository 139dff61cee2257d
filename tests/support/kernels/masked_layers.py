"""The house's masked layers, on a GPU or in the interpreter: a line of JSON answers each task.

A task is a line of JSON too, a list of words. `errors FORM DTYPE MASK...`: the errors of one form
of the kernels against float64, by op, mask and tensor, as shares of the largest element; under
every mask, or those that are named. `packed` is the form of descriptors for few tokens with the
gradients of weights as for many. `train STEPS SEED`: the losses of a small model, of these
layers and of plain torch. `compile`: the largest difference between a compiled model's gradients
and the same model's without a compiler; `reduced`: the same under CUDA graphs. `plans`: when a
mask's plan is kept; `partitions`: whether plans are right; `planned`: whether planned launches do
as ordinary ones; `captured`: a CUDA graph; `sizes`: the errors of the forms that a
GPU takes; `memory`: bytes.
"""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from unittest import mock

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

from common.ops import masked_ffn as ffn  # noqa: E402
from common.ops import masked_linear as linear  # noqa: E402
from common.paths import ROOT  # noqa: E402

sys.path.insert(0, str(ROOT / "contributors" / "house"))


def masks(tokens: int) -> dict[str, torch.Tensor]:
    """Return masks by name: fractions, spans, and those that leave a kind without a token."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.rand(tokens, generator=generator)
    place = torch.arange(tokens)
    masks = {f"{share:g} of all": drawn < share for share in (0, 0.02, 0.5, 1)}
    masks["one span"] = (place >= 70) & (place < 201)
    masks["whole tiles"] = place < 128
    masks["nine spans"] = place % 33 < 11
    return masks


def weights(shapes: list[tuple[int, int]], dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(shape, device=DEVICE).mul(shape[1] ** -0.5).to(dtype) for shape in shapes]


def errors(op, solution, x, others, mask) -> dict[str, float]:
    """Return the error of the output and of each gradient, by name."""
    got, truth = ([t.detach().requires_grad_() for t in (x, *others)] for _ in range(2))
    wide = [t.double().detach().requires_grad_() for t in truth]
    output, expected = solution(*got, mask), op.reference(*wide, mask)
    grad_output = torch.randn_like(output)
    output.backward(grad_output)
    expected.backward(grad_output.double())
    pairs = {"output": (output, expected)}
    pairs |= {
        name: (a.grad, b.grad) for name, a, b in zip(op.OP.differentiable, got, wide, strict=True)
    }
    return {name: _error(*pair) for name, pair in pairs.items()}


def _error(a: torch.Tensor, b: torch.Tensor) -> float:
    if not b.numel():
        return 0.0
    largest = b.abs().max().item() or 1.0
    return ((a.double() - b).abs().max() / largest).nan_to_num(nan=torch.inf).item()


def all_errors(form: str, dtype: torch.dtype, some: Sequence[str]) -> dict[str, dict[str, float]]:
    import forms
    import gradients

    torch.manual_seed(0)
    found, many = {}, 304
    with contextlib.ExitStack() as stack:
        if form == "packed":  # as many tokens would have it; these are not planned yet
            form, many = "descriptors", 300
            stack.enter_context(mock.patch.object(gradients, "ROWS_BY_KIND", 0))
        stack.enter_context(mock.patch.object(forms, "forced", form))
        stack.enter_context(unwatched(form == "descriptors"))
        for tokens in (0, 1, many):
            any_mask = {"any": torch.ones(tokens, dtype=torch.bool)}
            for name, mask in (masks(tokens) if tokens == many else any_mask).items():
                if some and name not in some:
                    continue
                # a descriptor describes 70 columns of 72, but not a copy of the 70
                width = 70 if name == "0.5 of all" else 72
                x = torch.randn(tokens, 72, device=DEVICE).to(dtype)[:, :width]
                if name == "one span":
                    x = x.T.contiguous().T
                pair, sets = shapes_of(width, 136)
                for op, solution, shapes in ((linear, LINEAR, pair), (ffn, FFN, sets)):
                    found[f"{op.OP.name} {tokens} {name}"] = errors(
                        op, solution(), x, weights(shapes, dtype), mask.to(DEVICE)
                    )
    return found


def unwatched(wanted: bool):
    """Return a context in which the interpreter does not watch memory.

    A descriptor of two weights begins in one of them and ends in the other, which the watch takes
    for an access out of bounds.
    """
    if DEVICE == "cuda" or not wanted:
        return contextlib.nullcontext()
    from common.sandbox.interpreter.bounds import Watch

    return mock.patch.object(Watch, "check")


def errors_of_sizes() -> dict[str, dict[str, float]]:
    """Return the errors of the forms that a GPU takes by itself, from one token to many tiles.

    130 tokens have tiles of 64 rows, 16,384 of 128, and 9 a small op's; 1,000 columns end amid a
    block; with 8,192 columns forward packs x, and 2,000 tokens' sums go by kind, but for
    those of `gate` and `up`; a transposed x is copied first.
    """
    torch.manual_seed(0)
    found = {}
    sizes = (9, 64, 72), (130, 1024, 1024), (2048, 1000, 1032), (16384, 256, 512), (2000, 256, 8192)
    for tokens, width, inner in sizes:
        pair, sets = shapes_of(width, inner)
        named = masks(tokens)
        for name in ("0.02 of all", "0.5 of all", "one span", "nine spans"):
            for op, solution, shapes in ((linear, LINEAR, pair), (ffn, FFN, sets)):
                x = torch.randn(tokens, width, device=DEVICE).to(torch.bfloat16)
                if name == "nine spans":
                    x = x.T.contiguous().T
                found[f"{op.OP.name} {tokens} {name}"] = errors(
                    op, solution(), x, weights(shapes, torch.bfloat16), named[name].to(DEVICE)
                )
    return found


def memory() -> dict[str, tuple[float, float]]:
    """Return the bytes that forward keeps for backward beside x and the output, by op, and those
    of the pre-activations.
    """
    torch.manual_seed(0)
    tokens, width, inner = 8192, 1024, 2048
    pair, sets = shapes_of(width, inner)
    return {
        "linear": (_kept(LINEAR(), pair, tokens, width), 0),
        "ffn": (_kept(FFN(), sets, tokens, width), tokens * 2 * inner * 2),
    }


def _kept(solution, shapes: list[tuple[int, int]], tokens: int, width: int) -> int:
    """Return the bytes that a call of a solution keeps; no tensor of it outlives this function.

    Requested bytes: of a cached block, up to 1 MiB more than was asked for counts as allocated.
    """
    x = torch.randn(tokens, width, device=DEVICE).to(torch.bfloat16).requires_grad_()
    leaves = [w.requires_grad_() for w in weights(shapes, torch.bfloat16)]
    mask = torch.rand(tokens, device=DEVICE) < 0.5
    solution(x, *leaves, mask)  # compile
    before = _requested()
    output = solution(x, *leaves, mask)
    return _requested() - before - output.nbytes


def _requested() -> int:
    """Return the bytes of GPU memory that torch has been asked for and has not got back."""
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


def shapes_of(width: int, inner: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the shapes of the linear layer's weights and of the gated one's."""
    return [(inner, width)] * 2, [(inner, width), (width, inner), (inner, width)] * 2


def LINEAR():
    import masked_linear

    return masked_linear.masked_linear


def FFN():
    import masked_ffn

    return masked_ffn.masked_ffn


def model(solutions, x, layers, mask):
    """Return x after some residual layers, each a linear and a gated one."""
    by_linear, by_ffn = solutions
    for pair, sets in layers:
        x = x + by_linear(torch.nn.functional.layer_norm(x, x.shape[-1:]), *pair, mask)
        x = x + by_ffn(torch.nn.functional.layer_norm(x, x.shape[-1:]), *sets, mask)
    return x


def problem(count: int, seed: int):
    """Return inputs, targets, mask and layers: small in the interpreter, of model size on a GPU."""
    torch.manual_seed(seed)
    tokens, width, inner = (4096, 512, 1024) if DEVICE == "cuda" else (140, 32, 48)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    mask = torch.rand(tokens, device=DEVICE) < 0.4
    x, target = (torch.randn(tokens, width, device=DEVICE).to(dtype) for _ in range(2))
    pair, sets = shapes_of(width, inner)
    pair = [(width, width)] * len(pair)
    layers = [(weights(pair, dtype), weights(sets, dtype)) for _ in range(count)]
    return x, target, mask, layers


def losses(solutions, steps: int, seed: int) -> list[float]:
    """Train a model of four layers and return its loss at each step."""
    x, target, mask, layers = problem(4, seed)
    parameters = [w.requires_grad_() for pair, sets in layers for w in (*pair, *sets)]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    found = []
    for _ in range(steps):
        loss = (model(solutions, x, layers, mask) - target).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def compiled_difference() -> float:
    x, _, mask, layers = problem(1, 0)
    leaves = [w.requires_grad_() for pair, sets in layers for w in (*pair, *sets)]
    ours = LINEAR(), FFN()
    backend = "inductor" if DEVICE == "cuda" else "aot_eager"
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    each = [
        torch.autograd.grad(run(ours, x, layers, mask).square().mean(), leaves)
        for run in (model, compiled)
    ]
    return largest_difference(*each)


def largest_difference(expected, results) -> float:
    """Return the largest difference of two lists of tensors, as a share of the expected norm."""
    pairs = zip(expected, results, strict=True)
    return max(((a - b).norm() / a.norm()).item() for a, b in pairs)


def reduced_differences() -> list[float]:
    """Return the differences of gradients under CUDA graphs of torch.compile, by step.

    The mask changes in place before each step: the first steps warm up and record, the others
    replay.
    """
    x, _, mask, layers = problem(2, 0)
    leaves = [w.requires_grad_() for pair, sets in layers for w in (*pair, *sets)]
    ours = LINEAR(), FFN()
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    differences = []
    for _ in range(6):
        mask.copy_(mask.roll(37))
        torch.compiler.cudagraph_mark_step_begin()
        expected, results = (
            torch.autograd.grad(run(ours, x, layers, mask).square().mean(), leaves)
            for run in (model, compiled)
        )
        differences.append(largest_difference(expected, results))
    return differences


def plans() -> dict[str, bool]:
    """Return whether a plan is the one before it, by the reason that it might be another."""
    import partition

    mask = torch.arange(140, device=DEVICE) < 90
    plan = partition.kept_plan(mask, 64)
    found = {"same mask": partition.kept_plan(mask, 64) is plan}
    found["other tiles"] = partition.kept_plan(mask, 128) is plan
    plan = partition.kept_plan(mask, 64)
    found["equal mask"] = partition.kept_plan(mask.clone(), 64) is plan
    plan = partition.kept_plan(mask, 64)
    mask.logical_not_()
    found["changed mask"] = partition.kept_plan(mask, 64) is plan
    with torch.inference_mode():
        mask = mask.clone()
        found["no version"] = partition.kept_plan(mask, 64) is partition.kept_plan(mask, 64)
    return found


def partitions() -> dict[str, bool]:
    """Return by mask and tile height whether the plan has each token once and in its place."""
    import partition
    from sequence import Direction

    sort = Direction(lambda s, tile, mask: (partition.sort(s, tile, mask),))
    found = {}
    for tokens in (0, 1, 40, 304, 5000):
        for name, mask in masks(tokens).items():
            for tile in (32, 128):
                (plan,) = sort((tile,), mask.to(DEVICE))
                found[f"{tokens} {name} {tile}"] = _is_sorted(mask, tile, plan)
    return found


def _is_sorted(mask: torch.Tensor, tile: int, plan: torch.Tensor) -> bool:
    order, ends = plan.cpu().tensor_split([-4])
    visual_end, end, whole_visual, whole_end = ends.tolist()
    right = True
    for first, whole, last, kind in (
        (0, whole_visual, visual_end, mask), (visual_end, whole_end, end, ~mask)
    ):  # fmt: skip
        rows = order[first:last]
        right &= torch.equal(rows[rows >= 0].sort().values, kind.nonzero().flatten().int())
        starts = order[first:whole:tile]
        places = starts[:, None] + torch.arange(tile)
        right &= torch.equal(order[first:whole], places.flatten().int())
        tiles = kind[: len(kind) // tile * tile].view(-1, tile)
        right &= starts.tolist() == (tiles.all(1).nonzero().flatten() * tile).tolist()
    return bool(right & (order[end:] == -1).all())


def planned() -> dict[str, bool]:
    """Return by op and tokens whether planned launches do as ordinary ones do.

    They are asked for thrice, since the first one of a shape is ordinary; all results are kept, so
    that each call has its tensors at other addresses.
    """
    import launch

    torch.manual_seed(0)
    found = {}
    for tokens in (40, 2048):
        pair, sets = shapes_of(*((1024, 512) if DEVICE == "cuda" else (24, 40)))
        for op, solution, shapes in ((linear, LINEAR(), pair), (ffn, FFN(), sets)):
            x, *others = weights([(tokens, shapes[0][1]), *shapes], torch.float16)
            mask = torch.rand(tokens, device=DEVICE) < 0.4
            with mock.patch.object(launch, "watched", return_value=True):
                results = [results_of(solution, (x, *others), mask)]
            results += [results_of(solution, (x, *others), mask) for _ in range(3)]
            same = (all(map(torch.equal, results[0], tensors)) for tensors in results)
            found[f"{op.OP.name} {tokens}"] = all(same)
    return found


def results_of(solution, tensors, mask) -> tuple[torch.Tensor, ...]:
    """Return copies of the tensors, the output and the gradients."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    output = solution(*leaves, mask)
    return *leaves, output, *torch.autograd.grad(output, leaves, torch.ones_like(output))


def captured() -> float:
    """Return the error of a CUDA graph of one layer that is replayed on another mask."""
    x, _, mask, ((pair, sets),) = problem(1, 0)
    solutions = LINEAR(), FFN()
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(solutions, x, [(pair, sets)], mask)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = model(solutions, x, [(pair, sets)], mask)
        mask.logical_not_()
        graph.replay()
        eager = model((linear.reference, ffn.reference), x, [(pair, sets)], mask)
    return ((output - eager).float().norm() / eager.float().norm()).item()


def trained(steps: int, seed: int) -> list[list[float]]:
    """Return the losses of these layers and of plain torch."""
    both = ((LINEAR(), FFN()), (linear.reference, ffn.reference))
    return [losses(solutions, steps, seed) for solutions in both]


TASKS = {
    "errors": lambda form, dtype, *some: all_errors(form, getattr(torch, dtype), some),
    "train": lambda steps, seed: trained(int(steps), int(seed)),
    "compile": compiled_difference,
    "reduced": reduced_differences,
    "plans": plans,
    "partitions": partitions,
    "captured": captured,
    "planned": planned,
    "sizes": errors_of_sizes,
    "memory": memory,
}


def main() -> None:
    if DEVICE == "cpu":
        from common.sandbox.interpreter import patches

        patches.install()
    for line in sys.stdin:
        task, *words = json.loads(line)
        print(json.dumps(TASKS[task](*words)), flush=True)


if __name__ == "__main__":
    main()
