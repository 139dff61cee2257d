"""The interpreter as the grader has it, in test_house's process alone: pytest loads this in all."""

from triton import knobs

if knobs.runtime.interpret:
    from common.sandbox.interpreter import patches

    patches.install()
