"""Common mistakes, one file for each op; `grading/diagnosis.py` recognizes them in wrong results.

`MISTAKES` maps a mistake's name to the op's reference with that mistake, a function that is called
with keyword arguments only. A mistake in backward does not change the output. The names complete
the line "likely cause: ...", for example "the sine has the other sign".

A mistake that would access memory outside of a tensor raises `NotImplementedError`.
"""
