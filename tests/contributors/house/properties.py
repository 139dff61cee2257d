"""What torch's tools may do with the exported functions: the table of docs/models.md."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import fast
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from common.gradients import outputs_of
from common.ops import masked_ffn, masked_linear, rope, rotate_half
from tests.support import interpreting
from tests.support.corpora import ROOT, in_the_docs

RIGHT, REFUSED = "right", "an error"
DICE = torch.Generator().manual_seed(0)
TOKENS, WIDTH, INNER = 40, 16, 24


def drawn(*shape):
    return torch.randn(shape, generator=DICE)


MASK = torch.rand(TOKENS, generator=DICE) < 0.4
FREQS, T = drawn(9, 1, 1, 8), drawn(6, 2, 3, 16)
UP, DOWN = (INNER, WIDTH), (WIDTH, INNER)
HOW = None, None, "sbhd", False, 1, 0, False


class Call(NamedTuple):
    """A function of leaves, the same in plain torch, its operators and what the first one takes."""

    ours: Callable[..., Any]
    plain: Callable[..., Any]
    leaves: list[torch.Tensor]
    operators: tuple[str, ...]
    arguments: Callable[..., list[Any]]

    def graded(self, function):
        """Return a function of the leaves: the gradients of the sum of the outputs' squares."""
        return torch.func.grad(lambda *leaves: loss(function(*leaves)), (*range(len(self.leaves)),))


def loss(outputs):
    return sum(each.float().square().sum() for each in outputs_of(outputs))


def layer(ours, op, leaves):
    names = *(f"{op.OP.name}{each}" for each in ("", "_launch", "_backward")), "masked_sort"
    functions = (functools.partial(lambda f, *x: f(*x, MASK), f) for f in (ours, op.reference))
    return Call(*functions, leaves, names, lambda *leaves: [*leaves, MASK])


def turning(ours, plain, leaves, freqs=FREQS):
    return Call(ours, plain, leaves, ("rope",), lambda t, k=None: [t, k, freqs, *HOW])


CALLS = {
    "rope": turning(lambda t: fast.rope(t, FREQS), lambda t: rope.reference(t, FREQS), [T]),
    "rope_": turning(lambda t: fast.rope_(t * 1, FREQS), lambda t: rope.reference(t, FREQS), [T]),
    "rope_qk": turning(
        lambda q, k: fast.rope_qk(q, k, FREQS),
        lambda q, k: (rope.reference(q, FREQS), rope.reference(k, FREQS)),
        [T, T[:, :, :1]],
    ),
    "rotate_half": turning(fast.rotate_half, rotate_half.reference, [T], None),
    "masked_linear": layer(
        fast.masked_linear, masked_linear, [drawn(TOKENS, WIDTH), drawn(*UP), drawn(*UP)]
    ),
    "masked_ffn": layer(
        fast.masked_ffn,
        masked_ffn,
        [drawn(TOKENS, WIDTH), *(drawn(*shape) for shape in (UP, DOWN, UP) * 2)],
    ),
}


def close(got, wanted):
    torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-3)
    return RIGHT


def both(call: Call, way: Callable[[Callable[..., Any]], Any]) -> str:
    """Return whether a way to use a function gives plain torch's results, or one short error."""
    try:
        return close(way(call.ours), way(call.plain))
    except NotImplementedError as error:
        return REFUSED if len(str(error)) < 200 else f"wrong: {error}"


def trained(function, leaves):
    leaves = [each.detach().requires_grad_() for each in leaves]
    return torch.autograd.grad(loss(function(*leaves)), leaves)


def opcheck(call):
    """Each operator with its own arguments, those of a call's."""
    calls = []

    class Note(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            if function.namespace == "house":
                copies = tree_map_only(torch.Tensor, lambda each: each.detach().clone(), arguments)
                calls.append((function, copies))
            return function(*arguments, **(options or {}))

    leaves = [each.detach().requires_grad_() for each in call.leaves]
    with FlopCounterMode(display=False), Note():
        torch.autograd.grad(loss(call.ours(*leaves)), leaves)
    # the one that autograd differentiates, made of the others
    calls.append((getattr(torch.ops.house, call.operators[0]).default, call.arguments(*leaves)))
    assert {function._opname for function, _ in calls} == set(call.operators)
    for function, arguments in calls:
        torch.library.opcheck(function, tuple(arguments))
    return RIGHT


def compiled(call):
    torch._dynamo.reset()
    run = torch.compile(call.ours, backend="aot_eager", fullgraph=True)
    return close(trained(run, call.leaves), trained(call.plain, call.leaves))


def frozen(call):
    """The numbers that a compiled call makes: no gradient of weights, no gates without training."""
    if len(call.leaves) < 3:
        return "–"
    torch._dynamo.reset()
    sizes = []

    def note(graph, _):
        nodes = [node for node in graph.graph.nodes if "house" in str(node.target)]
        sizes.append({tuple(value.shape) for node in nodes for value in node.meta["val"]})
        return graph

    backend = aot_autograd(fw_compiler=note, bw_compiler=note)
    run = torch.compile(call.ours, backend=backend, fullgraph=True)
    x, *weights = call.leaves
    close(trained(lambda x: run(x, *weights), [x]), trained(lambda x: call.plain(x, *weights), [x]))
    with torch.no_grad():
        close(run(x, *weights), call.plain(x, *weights))
    _, backward, inference = sizes
    assert backward == {(TOKENS, WIDTH), (0,)}
    assert all(len(shape) < 3 for shape in inference)
    return RIGHT


def exported(call):
    class Model(torch.nn.Module):
        def forward(self, *leaves):
            return call.ours(*leaves)

    program = torch.export.export(Model(), tuple(call.leaves)).module()
    return close(program(*call.leaves), call.plain(*call.leaves))


def func_grad(call):
    """Also of a value that another gradient is taken of, and by vjp, whose level is over."""

    def ways(function):
        def value(*leaves):
            return torch.func.grad_and_value(lambda *inner: loss(function(*inner)))(*leaves)[1]

        outputs, pull = torch.func.vjp(function, *call.leaves)
        first = call.graded(function)(*call.leaves), torch.func.grad(value)(*call.leaves)
        return *first, pull(outputs)

    return both(call, ways)


def func_grad_compiled(call):
    torch._dynamo.reset()
    graded = torch.compile(call.graded(call.ours), backend="aot_eager", fullgraph=True)
    return close(graded(*call.leaves), call.graded(call.plain)(*call.leaves))


def vmapped(call):
    """Over batches of each leaf, and the gradients of each sample."""
    batches = [torch.stack((each, -each)) for each in call.leaves]

    def each(function):
        return lambda *batches: tuple(map(torch.stack, zip(*map(function, *batches), strict=True)))

    def mapped(function):
        run = torch.vmap if function is call.ours else each
        outputs, gradients = run(lambda *x: outputs_of(function(*x))), run(call.graded(function))
        return outputs(*batches), gradients(*batches)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        return both(call, mapped)


def jvp(call):
    tangents = tuple(drawn(*each.shape) for each in call.leaves)

    def dual(function):
        with torch.autograd.forward_ad.dual_level():
            leaves = map(forward_ad.make_dual, call.leaves, tangents)
            return [forward_ad.unpack_dual(each) for each in outputs_of(function(*leaves))]

    def by_func(function):
        def of_first(x):
            return function(x, *call.leaves[1:])

        ways = (function, len(tangents)), (of_first, 1)
        return [torch.func.jvp(f, (*call.leaves[:n],), tangents[:n]) for f, n in ways]

    found = both(call, by_func)
    assert found == both(call, dual)
    return found


def second_derivative(call):
    """Of the gradient of a loss, of a sum, and by torch.func."""

    def twice(function, reduce):
        leaves = [each.detach().requires_grad_() for each in call.leaves]
        first = torch.autograd.grad(reduce(function(*leaves)), leaves, create_graph=True)
        return torch.autograd.grad(loss(first), leaves, allow_unused=True)

    def of_sum(outputs):
        return sum(each.sum() for each in outputs_of(outputs))

    def by_func(function):
        graded = call.graded(function)
        return torch.func.grad(lambda x: loss(graded(x, *call.leaves[1:])))(call.leaves[0])

    found = {both(call, lambda f: twice(f, loss)), both(call, by_func)}
    if REFUSED in found:  # a linear function's sum has no second derivative to compare
        found.add(both(call, lambda f: twice(f, of_sum)))
    (only,) = found
    return only


def autocast(call):
    """In bfloat16, as eager's products, or in the leaves' dtype."""
    torch._dynamo.reset()
    got, wanted, compiled = [], [], []
    run = torch.compile(call.ours, backend="aot_eager", fullgraph=True)
    for function, into in ((call.ours, got), (call.plain, wanted), (run, compiled)):
        leaves = [each.detach().requires_grad_() for each in call.leaves]
        with torch.autocast("cpu", torch.bfloat16):
            outputs = outputs_of(function(*leaves))
        into += [*outputs, *torch.autograd.grad(loss(outputs), leaves)]
    assert [each.dtype for each in got] == [each.dtype for each in wanted]
    for one, other in zip(got + compiled, wanted + wanted, strict=True):
        assert (one - other).norm() <= 2e-2 * other.norm()
    half = got[0].dtype == torch.bfloat16
    return f"{RIGHT}, in bfloat16" if half else f"{RIGHT}, in t's dtype"


def flops(call):
    """Those of one kind's products, forward and in backward; plain torch has both kinds'."""
    counts = []
    for function in (call.ours, call.plain):
        with FlopCounterMode(display=False) as counter:
            trained(function, call.leaves)
        counts.append(counter.get_total_flops())
    assert counts[0] * 2 == counts[1]
    return f"{RIGHT}" if counts[0] else "no products"


def misfits(call):
    first, *others = call.leaves
    for way in (call.ours, torch.compile(call.ours, backend="aot_eager")):
        with pytest.raises(Exception, match=r"rope: |rotate_half: |masked_\w+: ") as raised:
            way(first[..., :5], *others)
        assert way is not call.ours or raised.type is ValueError
    return "ValueError"


@functools.cache
def elsewhere(interpret, dtype):
    """Return what a new process finds without the harness's patches, and without a GPU."""
    code = "\n".join([
        "import os, sys",
        f"os.environ.update(TRITON_INTERPRET='{interpret}', CUDA_VISIBLE_DEVICES='')",
        f"sys.path.insert(0, '{ROOT}/contributors/house')",
        "import json; from tests.contributors.house import properties",
        f"print(json.dumps(properties.without_patches('{dtype}')))",
    ])  # fmt: skip
    return interpreting.printed("-c", code)


def without_patches(dtype):
    return {name: without_a_patch(call, getattr(torch, dtype)) for name, call in CALLS.items()}


def without_a_patch(call, dtype):
    fast.operators.has_kernels.cache_clear()
    leaves = [each.to(dtype) for each in call.leaves]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            results = [trained(function, leaves) for function in (call.plain, call.ours, call.ours)]
        except NotImplementedError as error:
            return REFUSED if len(str(error)) < 200 else "wrong"
    errors = [(one - other).norm() / one.norm() for one, _, other in zip(*results, strict=True)]
    found = RIGHT if max(errors) < 1e-2 else "wrong"
    told = [each for each in told if "plain torch" in str(each.message)]
    return found + ", in plain torch, one warning" * (len(told) == 1)


PROPERTIES = {
    "`torch.library.opcheck`, each operator": opcheck,
    "`torch.compile(fullgraph=True)`, with gradients": compiled,
    "compiled: no gradients of frozen weights, no gates kept in inference": frozen,
    "`torch.export`": exported,
    "`torch.func.grad`, `vjp`": func_grad,
    "the same, compiled": func_grad_compiled,
    "`torch.func.vmap`, of the function and of its gradient": vmapped,
    "`torch.func.jvp`, `forward_ad`": jvp,
    "a second derivative, of any loss": second_derivative,
    "`torch.autocast`, with float32 inputs": autocast,
    "`FlopCounterMode`": flops,
    "shapes or dtypes that do not fit": misfits,
    "a CPU, without the interpreter": lambda call: elsewhere(0, "float32")[name_of(call)],
    "`TRITON_INTERPRET=1`, bfloat16": lambda call: elsewhere(1, "bfloat16")[name_of(call)],
}


def name_of(call):
    return next(name for name, each in CALLS.items() if each is call)


@functools.cache
def cell(name, function):
    return PROPERTIES[name](CALLS[function])


@pytest.mark.parametrize("function", CALLS)
@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_holds(name, function):
    assert "wrong" not in cell(name, function)


def test_the_table_of_the_docs_is_of_these_checks(pytestconfig):
    """`nox -s harness -- tests/contributors/test_house.py --write-docs` writes it."""
    rows = [["", *(f"`{function}`" for function in CALLS)], ["---"] * (1 + len(CALLS))]
    rows += [[name, *(cell(name, function) for function in CALLS)] for name in PROPERTIES]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    assert in_the_docs("properties", table, pytestconfig.getoption("write_docs"), "models")
