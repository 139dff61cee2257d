"""Run a command beside a process that holds all but some GiB of the GPU's memory.

python -m tests.generators.holding 8 python -m common bench --op masked_linear
"""

import contextlib
import subprocess
import sys

import torch

GIB = 1 << 30


def main(left, *command):
    """Hold all but so many GiB, and return the command's exit code."""
    torch.cuda.init()
    free, _ = torch.cuda.mem_get_info()
    excess = free - int(float(left) * GIB)
    if excess <= 0:
        raise SystemExit(f"{free / GIB:.1f} GiB are free: there is nothing to hold for {left}")
    held = torch.empty(excess, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.mem_get_info()[0] / GIB:.1f} GiB are left", file=sys.stderr, flush=True)
    code = run(command)
    del held
    return code


def run(command):
    """Return a command's exit code; Ctrl-C is for the command, which says where it stands."""
    with subprocess.Popen(command) as process:
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                return process.wait()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit("usage: python -m tests.generators.holding GIB COMMAND...")
    raise SystemExit(main(*sys.argv[1:]))
