"""Common mistakes, one file an op; `grading/diagnosis.py` recognizes them in wrong results.

`MISTAKES` of each file maps a mistake's name to the op's reference with that mistake, called with
keywords alone. A mistake of backward leaves the output as it is. The names complete the line
"likely cause: ...", for example "the sine has the other sign".

Where a mistake leads outside of the op's tensors, it raises `NotImplementedError`.
"""
