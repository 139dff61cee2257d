"""What is accepted when graded is accepted when timed, here by the host's clock.

test_timed_on_gpu.py times every honest solution, by both clocks.
"""

import pytest

from tests.support import corpora as corpus
from tests.support.corpora import HONEST

pytestmark = pytest.mark.slow

FORMS = set(
    "bound_method bound_twice callable_instance compiled custom_operator decorated"
    " dispatched_by_type function_apply module_instance script_module torchscript"
    " triton_operator".split()
)
"""One solution for each form of a callable that CONTRIBUTING.md accepts."""
MEANS_TO_TIME = FORMS | set(
    "captured_graph look_back_scan side_stream thread_pool_of_multiprocessing"
    " tickets_by_atomics".split()
)
TIMED = [solution for solution in HONEST if solution.handle in MEANS_TO_TIME]


@pytest.fixture(scope="module")
def timed(fork_server):
    return corpus.timed_where_right("cpu", TIMED, fork_server)


@pytest.mark.parametrize("solution", TIMED, ids=lambda solution: solution.name)
def test_what_is_accepted_when_graded_is_accepted_when_timed(solution, timed):
    assert timed[solution] and set(timed[solution].values()) == {"PASSED"}


def test_every_means_is_timed():
    assert len(TIMED) == len(MEANS_TO_TIME)
