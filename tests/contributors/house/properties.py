"""What holds of a rotation, on shapes and options that hypothesis draws."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rope import rope
from rotate_half import rotate_half

CLOSE = {"atol": 2e-5, "rtol": 2e-5}
few = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@st.composite
def calls(draw):
    """Draw t [s, b, h, d], freqs whose pairs have one angle each, and the layout of pairs."""
    s, b, h = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    half, rest = draw(st.integers(1, 9)), draw(st.integers(0, 7))
    interleaved = draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    t = torch.randn(s, b, h, 2 * half + rest, generator=generator)
    angles = 10 * torch.randn(s, 1, 1, half, generator=generator)
    return t, paired(angles, interleaved), interleaved


def paired(angles, interleaved):
    """Give both features of a pair its angle; angles are [..., d2 / 2]."""
    if interleaved:
        return angles.repeat_interleave(2, dim=-1)
    return torch.cat((angles, angles), dim=-1)


@few
@given(calls())
def test_a_rotation_keeps_norms(call):
    t, freqs, interleaved = call
    turned = rope(t, freqs, interleaved=interleaved)
    torch.testing.assert_close(turned.norm(dim=-1), t.norm(dim=-1), **CLOSE)


@few
@given(calls())
def test_negative_angles_undo_it(call):
    t, freqs, interleaved = call
    turned = rope(t, freqs, interleaved=interleaved)
    torch.testing.assert_close(rope(turned, -freqs, interleaved=interleaved), t, **CLOSE)


@few
@given(calls())
def test_backward_is_the_inverse(call):
    """A rotation is orthogonal, so that its transpose undoes it."""
    t, freqs, interleaved = call
    x = t.requires_grad_()
    turned = rope(x, freqs, interleaved=interleaved)
    (grad,) = torch.autograd.grad(turned, x, turned.detach())
    torch.testing.assert_close(grad, t.detach(), **CLOSE)


@few
@given(calls(), st.integers(0, 50))
def test_scores_depend_on_relative_positions_alone(call, shift):
    """Queries and keys that are all moved by as many positions have the same products."""
    t, freqs, interleaved = call
    width, length = freqs.shape[-1], len(t)
    frequency = torch.linspace(0.05, 1, width // 2)
    positions = torch.arange(length + shift + 1, dtype=torch.float32)
    angles = paired(torch.outer(positions, frequency)[:, None, None], interleaved)
    q, k = t[..., :width], t.flip(0)[..., :width]

    def scores(first):
        starts = torch.full((t.shape[1],), first, dtype=torch.int32)
        turned = [rope(x, angles, interleaved=interleaved, start_positions=starts) for x in (q, k)]
        return torch.einsum("sbhd,tbhd->bhst", *turned)

    torch.testing.assert_close(scores(shift), scores(0), atol=2e-4, rtol=2e-4)


@few
@given(calls())
def test_gradients_are_those_of_finite_differences(call):
    """A linear map has the same differences at any step, so that float32 is enough."""
    t, freqs, interleaved = call
    uneven = freqs * torch.linspace(0.5, 1.5, freqs.shape[-1])
    x, upstream, direction = t.requires_grad_(), torch.randn_like(t), torch.randn_like(t)

    def loss(x):
        return (rope(x, uneven, interleaved=interleaved) * upstream).double().sum()

    (grad,) = torch.autograd.grad(loss(x), x)
    with torch.no_grad():
        difference = (loss(x + direction) - loss(x - direction)) / 2
    torch.testing.assert_close((grad * direction).double().sum(), difference, atol=1e-3, rtol=1e-3)


@few
@given(calls())
def test_two_quarter_turns_are_a_half_turn(call):
    t, freqs, interleaved = call
    x = t[..., : freqs.shape[-1]]
    twice = rotate_half(rotate_half(x, interleaved=interleaved), interleaved=interleaved)
    assert torch.equal(twice, -x)
