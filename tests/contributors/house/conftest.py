"""The interpreter as the grader has it: with bfloat16 mended, quicker, its accesses watched."""

from triton import knobs

if knobs.runtime.interpret:
    from common.sandbox.interpreter import patches

    patches.install()
