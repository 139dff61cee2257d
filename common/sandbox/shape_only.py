"""Calls at a case's true shape without the memory and arithmetic of large floating-point tensors.

The kernels that a call launches and the bytes that it moves depend on shapes, strides, alignment,
integers (such as the number of a mask's true elements) and small tensors (such as angles that a
solution compares). So integers, booleans and small results are computed. A large floating-point
result is untouched memory, to which the operating system has not assigned pages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.flop_counter import flop_registry
from triton import knobs

from common import wire
from common.gradients import derivatives, outputs_of
from common.ops._draw import draw, given
from common.sandbox.configurations import CONFIGURATIONS
from common.sandbox.failures import judge
from common.sandbox.launches import LOG, UncompiledMode
from common.sandbox.poison import FRESH
from common.sandbox.session import Session
from common.spec import DIRECTIONS, Case, Direction
from common.wire import Reply

aten = torch.ops.aten
SMALL = 1 << 20
"""The most elements of a tensor that is small enough to be computed in any call."""
NOTHING = {
    aten.detach, aten.lift_fresh, aten.alias, aten._local_scalar_dense, aten.is_same_size,
    aten.set_, aten.resize_, *FRESH,
}  # fmt: skip
"""The operators that move no data."""
COMPILER = ModuleType("torch._dynamo")
COMPILER.disable = lambda function, *_, **__: function  # type: ignore[attr-defined]
"""Stands in for torch's compiler, which operators on meta tensors import, in half a second, to keep
it off themselves."""
PRODUCTS = {
    **flop_registry,
    # each group of rows of `a` has its own matrix
    aten._grouped_mm: lambda a, b, *_, **named: 2 * a.numel() * b.shape[-1],
}
"""The FLOPs of matrix products, attention and convolutions, whose results are never computed."""


class ShapeOnlyMode(UncompiledMode):
    """A mode that returns untouched memory instead of large floating-point results."""

    def __init__(self, small: int = SMALL, ran: Callable[..., None] = lambda *call: None) -> None:
        """Compute with tensors of at most `small` elements.

        `ran` is called with each operator that moves data or computes, its arguments, its keyword
        arguments, the tensors among these, and its result.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._small, self._ran = small, ran

    def __torch_dispatch__(  # noqa: D105
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view or func._overloadpacket in NOTHING:
            result = func(*args, **kwargs)
            large = func._overloadpacket in FRESH and result.numel() > self._small
            if func._overloadpacket in FRESH and not (large and result.is_floating_point()):
                result.zero_()  # a solution may read what a kernel that does not run would store
            return result
        inputs = list(tensors_of((args, kwargs)))
        result = _result(func, args, kwargs, inputs, self._small)
        self._ran(func, args, kwargs, inputs, result)
        return result


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested arguments or results."""
    yield from (value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor))


def _result(func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], small: int) -> Any:
    """Return the operator's result, either computed or as untouched memory of its shape."""
    is_product, written = func._overloadpacket in PRODUCTS, written_by(func, args, kwargs)
    if written:
        like: Any = written[0] if len(written) == 1 else tuple(written)
    elif inputs and not is_product and not any(each.is_floating_point() for each in inputs):
        like = None  # integers are computed
    else:
        like = _meta_result(func, args, kwargs)
        if like is None and is_product:
            raise NotImplementedError(f"the shape of {func} cannot be determined without a GPU")
    results = list(tensors_of(like))
    is_small = not is_product and all(each.numel() <= small for each in [*inputs, *results])
    if is_small or not any(each.is_floating_point() for each in results):
        return func(*args, **kwargs)  # its integers, or a shape that depends on values
    return like if written else tree_map_only(torch.Tensor, partial(_untouched, "cpu"), like)


def written_by(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that the operator changes."""
    parameters = func._schema.arguments
    names = [parameter.name for parameter in parameters]
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    changed = (p.name for p in parameters if p.alias_info and p.alias_info.is_write)
    return [arguments[name] for name in changed if arguments.get(name) is not None]


def _meta_result(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result as meta tensors; None if its shape depends on values."""
    untouched = partial(_untouched, "meta")
    args, kwargs = tree_map_only(torch.Tensor, untouched, (args, kwargs))
    there = {"device": torch.device("meta"), "generator": None}
    kwargs |= {name: value for name, value in there.items() if name in kwargs}
    stands_in = sys.modules.setdefault("torch._dynamo", COMPILER) is COMPILER
    try:
        return func(*args, **kwargs)
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return None
    finally:
        if stands_in:
            del sys.modules["torch._dynamo"]


def _untouched(device: str, like: torch.Tensor) -> torch.Tensor:
    """Return untouched memory of a tensor's shape on a device."""
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)


# --- a solution's call at a case's true shape -----------------------------------------------------


def directions(
    session: Session, case: Case, seed: int, ran: Callable[..., None] = lambda *call: None
) -> Iterator[Direction]:
    """Make the call that is timed on a GPU, on a case's inputs; large inputs are untouched memory.

    An argument without a gradient has its values: a solution may read them, for example angles, to
    decide whether it supports the case. Options whose value is the default are omitted. The inputs
    are drawn from the seed, and `ran` takes operators as that of `ShapeOnlyMode`. Yield each
    direction once it has run.

    Raises:
        Failure: UNSUPPORTED, if the function does not take an option of the call.
    """
    op, small, largest = session.solution.op, 0, SMALL
    while small < largest:
        small = largest
        with ShapeOnlyMode(small):
            arguments, upstream = draw(op, case, seed, "cpu")
        others = [value for name, value in arguments.items() if name not in op.differentiable]
        largest = max((each.numel() for each in tensors_of(others)), default=0)
    wanted = [arguments[name].requires_grad_() for name in op.differentiable]
    inputs, options = given(op, arguments)
    call = session.solution.call(inputs.values(), options)
    with ShapeOnlyMode(small, ran):
        outputs = outputs_of(call())
        yield "forward"
        tensors = all(isinstance(output, torch.Tensor) for output in outputs)
        differentiable = tensors and any(output.requires_grad for output in outputs)
        if differentiable and "backward" in case.directions:
            derivatives(outputs, wanted, upstream.values())
            yield "backward"


def at_full_shape(session: Session, request: wire.AtFullShape) -> Reply:
    """Compile the kernels of one case at its full shape, for the process's target.

    Returns:
        As `kernels`, by hash, each kernel's name, files by extension and direction of the first
        launch; as `caught`, the verdict and the reason of a launch's exception that the call
        caught. If it raised an exception, also the verdict, the reason and the direction.
    """
    kernels: dict[str, Reply] = {}
    done, stopped = list[Direction](), Reply()

    def compiled(src: Any, metadata: Reply, metadata_group: Reply, **_: Any) -> None:
        files = {path.rpartition(".")[2]: path for path in metadata_group.values()}
        direction = DIRECTIONS[len(done)]
        kernels[metadata["hash"]] = {"name": src.name, "files": files, "direction": direction}

    knobs.compilation.listener = compiled
    CONFIGURATIONS.begin(request.configurations)
    LOG.clear()
    try:
        case = session.solution.op.of_params(request.case)
        for direction in directions(session, case, seed=0):
            done.append(direction)
    except Exception as error:
        stopped = judge(error) | {"direction": DIRECTIONS[len(done)]}
    caught = judge(LOG.error) if LOG.error else {}
    return {"kernels": kernels, "caught": caught, **stopped}
