"""The interpreter as the grader has it: with bfloat16 mended, its accesses watched."""

from common.sandbox.interpreter import patches

patches.install()
