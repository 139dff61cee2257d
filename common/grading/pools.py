"""Pools of threads for work in torch on a CPU."""

from concurrent.futures import ThreadPoolExecutor

import torch


def threads(count: int) -> ThreadPoolExecutor:
    """Return a pool of so many threads, in each of which torch uses that thread alone.

    As many cases are at work as there are cores, and small tensors take longer on two threads.
    """
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
