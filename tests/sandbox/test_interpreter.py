"""Kernels in the patched interpreter do what they do on a GPU, and each access is checked."""

import pytest
import triton

from tests.support.interpreting import RIGHT, results

pytestmark = pytest.mark.slow
INTEGERS = ("torch.int8", "torch.int32", "torch.int64")
RIGHT_ALREADY = {
    "values": {
        *("bfloat16 maximum", "bfloat16 max", "ieee dot", "counted"),
        *("torch.bfloat16 to torch.float32", "torch.bfloat16 to torch.float16"),
        *(f"{name} {kind}" for name in INTEGERS for kind in ("add", "multiply")),
    },
    "language": {"constants beside tensors" if triton.__version__ < "3.7" else "loops in 64 bits"},
    "reductions": set(),
}
"""By module of kernels, those that are right without a patch, which no patch may break."""


@pytest.mark.parametrize("module", [*RIGHT_ALREADY, "accesses", "conflicts", "together"])
def test_kernels_do_what_they_do_on_a_gpu_and_faults_are_named(module):
    assert {name: told for name, told in results(module).items() if told != RIGHT} == {}


@pytest.mark.parametrize("module", RIGHT_ALREADY)
def test_each_patch_is_still_needed(module):
    """If a further kernel is right without the patches, the patch can go."""
    told = results(module, "bare")
    assert {name for name in told if told[name] == RIGHT} == RIGHT_ALREADY[module]


def test_an_element_of_a_product_has_the_same_bits_wherever_it_stands(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")  # these sum a tile's edges in another order
    assert set(results("products").values()) == {RIGHT}
