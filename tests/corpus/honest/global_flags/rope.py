"""Threads, determinism, precision and the random state are set for a call and put back."""

import contextlib

import torch


@contextlib.contextmanager
def _settings():
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(deterministic)
            torch.set_float32_matmul_precision(precision)
            torch.set_num_threads(threads)


def rope(t, freqs, *, tensor_format="sbhd", start_positions=None):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    with _settings():
        length = t.shape[tensor_format.index("s")]
        starts = [0] if start_positions is None else start_positions.tolist()
        angles = torch.cat([freqs[first : first + length] for first in starts], 1)
        angles = angles.transpose(0, 1) if tensor_format == "bshd" else angles
        rotary = freqs.shape[-1]
        x1, x2 = t[..., :rotary].float().chunk(2, -1)
        cos1, cos2 = angles.cos().chunk(2, -1)
        sin1, sin2 = angles.sin().chunk(2, -1)
        turned = torch.cat((x1 * cos1 - x2 * sin1, x2 * cos2 + x1 * sin2), -1)
        return torch.cat((turned.to(t.dtype), t[..., rotary:]), -1)
