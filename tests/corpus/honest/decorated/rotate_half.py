"""The function is wrapped twice: a wrapper logs and counts calls, the other filters warnings."""

import contextvars
import functools
import logging
import warnings

import torch

LOG = logging.getLogger("rotate_half")
LOG.addHandler(logging.NullHandler())
LOG.setLevel(logging.DEBUG)
SIDE = contextvars.ContextVar("side", default=1)


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **options):
        wrapper.calls += 1
        LOG.debug("call %d of %s, %s", wrapper.calls, function.__name__, options)
        return function(*args, **options)

    wrapper.calls = 0
    return wrapper


def quiet(function):
    @functools.wraps(function)
    def wrapper(*args, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            token = SIDE.set(1)
            try:
                return function(*args, **options)
            finally:
                SIDE.reset(token)

    return wrapper


@logged
@quiet
def rotate_half(x, *, interleaved=False):
    warnings.warn("heard by nobody", stacklevel=2)
    if interleaved:
        return torch.stack((-SIDE.get() * x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-SIDE.get() * x2, x1), -1)
