"""The comparison by which `rope`'s reference is held against TransformerEngine, without that."""

from common.ops.rope import OP, RopeCase
from common.spec import OUTPUT
from tests.support.oracle import first_wrong


def test_a_function_is_held_against_the_oracle_in_both_directions():
    def wrong_gradient(t, **options):
        turned = OP.reference(t, **options)
        return t + (turned - t).detach()

    case = RopeCase(tensor_format="sbhd", s=12, b=3, h=4, d=32, d2=32)
    assert first_wrong(OP.reference, case, "cpu") is None
    assert first_wrong(lambda t, **_: 1.0 * t, case, "cpu").startswith(OUTPUT)
    assert first_wrong(wrong_gradient, case, "cpu").startswith("t at")
