"""The kernels that a solution launches on a case, compiled whole for a target."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from triton import knobs

from common.ops._draw import draw
from common.sandbox import contract
from common.sandbox.compiled import target
from common.sandbox.compiled.hollow import Hollow
from common.sandbox.failures import judge
from common.sandbox.session import Session
from common.wire import Reply

SEED = 0
"""The seed of the inputs, of which integers and booleans are drawn."""


def launches(session: Session, name: str, case: str) -> Reply:
    """Compile the kernels of one case at its true shape; a process serves one target.

    Args:
        session: The solution's session.
        name: The target.
        case: The name of one of the board's cases.

    Returns:
        The files of each kernel by ending in `kernels`, and what ended the call in `verdict` and
        `reason`, if anything did.
    """
    assert session.op is not None and session.function is not None
    target.install(name)
    found: dict[str, Reply] = {}

    def compiled(src: Any, metadata: Reply, metadata_group: Reply, **_: Any) -> None:
        files = {path.rpartition(".")[2]: path for path in metadata_group.values()}
        found[metadata["hash"]] = {"name": src.name, "files": files}

    knobs.compilation.listener = compiled
    try:
        _call(session, case)
        reply: Reply = {}
    except Exception as error:
        reply = judge(error)
    return {"kernels": list(found.values()), "stopped": reply}


def _call(session: Session, case: str) -> None:
    """Call forward and backward on tensors whose floating values are nothing."""
    op, function = session.op, session.function
    assert op is not None and function is not None
    drawn = next(each for each in op.tier("board", "cuda") if each.name == case)
    with Hollow():  # type: ignore[no-untyped-call]
        arguments, upstream = draw(op, drawn, SEED, "cpu")
        wanted = []
        for name in op.differentiable:
            arguments[name] = arguments[name].detach().requires_grad_()
            wanted.append(arguments[name])
        output = function(**_named(session, arguments))
        if isinstance(output, torch.Tensor) and output.requires_grad:
            torch.autograd.grad(output, wanted, upstream, allow_unused=True)


def _named(session: Session, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments, less the options that have their default.

    Raises:
        Refused: UNSUPPORTED, where the function does not name an option of the call.
    """
    assert session.op is not None and session.function is not None
    contracted = inspect.signature(session.op.interface.__call__).parameters
    required, options = {}, {}
    for name, value in arguments.items():
        default = contracted[name].default
        if default is inspect._empty:
            required[name] = value
        elif isinstance(value, torch.Tensor) or value != default:
            options[name] = value
    return {**required, **contract.named_options(session.function, options)}
