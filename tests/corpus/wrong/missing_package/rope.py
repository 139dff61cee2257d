"""It imports a package that is not installed.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""

import a_package_that_nobody_has


def rope(t, freqs):
    return a_package_that_nobody_has.rope(t, freqs)
