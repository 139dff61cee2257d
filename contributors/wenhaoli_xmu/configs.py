"""Configurations of kernels: the fastest that `nox -s tune` measured, or a default."""

# docs/tuning.md says how to declare configurations, and how `nox -s tune` chooses among them.

import contextlib
import functools
import json
import re
import sys
from pathlib import Path

import torch
import triton

FOLDER = Path(__file__).parent
SCHEMA = 1
BROKEN = (OSError, ValueError, TypeError, KeyError, AttributeError)
"""What reading a file raises if it is not as `tune` writes it."""


class Tuned:
    """The configurations of one kernel: a default and a space, all dicts with the same keys."""

    def __init__(self, name, default, space):
        self.name, self.default, self.space = name, default, space
        # all lookups so far: (tokens, widths, dtype, device) -> configuration
        self.asked = {}
        # set by `tune` alone: (tokens, widths, dtype) -> the configuration to try
        self.forced = None

    def __call__(self, tokens, widths, like):
        """Return the keyword arguments of a launch for this shape.

        `widths` is a tuple of the sizes besides `tokens` that the speed depends on. dtype and
        device are those of the tensor `like`.
        """
        call = (tokens, widths, like.dtype, like.device)
        config = self.asked.get(call)
        if config is None:
            config = self.asked[call] = self._choose(*call)
        return config

    def _choose(self, tokens, widths, dtype, device):
        if self.forced is not None:
            return self.forced.get((tokens, widths, dtype), self.default)
        gpu = _gpu(device)
        if gpu is None:  # Triton's interpreter: nothing is timed there
            return self.default
        saved = _measured(*gpu)
        if saved is None:
            return self.default
        # the nearest token count by ratio: 64 is as far from 32 as from 128
        name = str(dtype).removeprefix("torch.")
        measured = saved.get((self.name, widths, name))
        if not measured:
            _say(f"{self.name} was never tuned for widths {widths} in {name}")
            return self.default
        near = max(tokens, 1)
        _, config = min(measured, key=lambda one: (max(one[0] / near, near / one[0]), one[0]))
        if config.keys() != self.default.keys():
            _say(f"{self.name} was tuned with other names than {', '.join(self.default)}")
            return self.default
        return config


def _gpu(device):
    """Return the name, compute capability and number of SMs of the GPU that kernels are made for.

    Without a GPU that is the target of Triton's active driver; None if it has none.
    """
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        return gpu.name, f"{gpu.major}.{gpu.minor}", gpu.multi_processor_count
    try:
        driver = triton.runtime.driver.active
        target, index = driver.get_current_target(), driver.get_current_device()
        if target.backend != "cuda":
            return None
        sms = driver.utils.get_device_properties(index)["multiprocessor_count"]
        return f"sm_{target.arch}", f"{target.arch // 10}.{target.arch % 10}", sms
    except (RuntimeError, ImportError):  # Triton finds no driver
        return None


@functools.cache  # one read a process
def _measured(gpu, capability, sms):
    """Return (kernel, widths, dtype) -> [(tokens, config), ...] of this or the most similar GPU.

    Return None if there is no file, or if the device's own file is not as `tune` writes it.
    """
    own = FOLDER / "configs" / f"{_slug(gpu)}.json"
    try:
        return _read(own)[1]
    except FileNotFoundError:
        path, measured = _most_similar(capability, sms)
        _say(f"never tuned on {gpu}", path and f"configs/{path.name}")
        return measured
    except BROKEN as error:
        _say(f"configs/{own.name} is broken or of another device ({error!r})")
        return None


def _most_similar(capability, sms):
    """Return the path and the content of the file that fits the device best, or (None, None).

    It is of a device of the same compute capability, the one with the nearest number of SMs.
    """
    similar = {}
    for path in sorted((FOLDER / "configs").glob("*.json")):
        with contextlib.suppress(*BROKEN):
            saved, measured = _read(path)
            if saved["compute_capability"] == capability:
                distance = abs(saved["multiprocessors"] - sms)
                similar.setdefault(distance, (path, measured))
    return similar[min(similar)] if similar else (None, None)


def _read(path):
    """Return a file's content, and its entries as (kernel, widths, dtype) -> [(tokens, config)]."""
    saved, measured = json.loads(path.read_text()), {}
    if saved["schema"] != SCHEMA or _slug(saved["device"]) != path.stem:
        raise ValueError(f"schema {saved['schema']}, device {saved['device']}")
    for kernel, entries in saved["kernels"].items():
        for entry in entries:
            tokens, config = entry["tokens"], dict(entry["config"])
            if not tokens > 0:
                raise ValueError(f"{tokens} tokens")
            shape = (kernel, tuple(entry["widths"]), entry["dtype"])
            measured.setdefault(shape, []).append((tokens, config))
    return saved, measured


def _slug(device_name):
    """Return the device's name as a file name: `NVIDIA H200` -> `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


@functools.cache  # prints each line once
def _say(why, taken=None):
    """Print to stderr why a launch takes no configuration of its own, which may cost speed."""
    hint = f"nox -s tune -- {FOLDER.name}"
    print(
        f"{FOLDER.name}: {why}: taking {taken or 'the default'}; {hint} finds better",
        file=sys.stderr,
    )
