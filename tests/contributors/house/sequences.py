"""Sequences of launches: which memory each launch gets, by addresses and in the ordinary way.

The plans are made up and launch nothing; that planned launches of the masked layers compute the
same, a GPU shows (tests/contributors/test_house_masked_on_gpu.py).
"""

import forms
import launch
import pytest
import torch
from sequence import Direction, alike


class Kernel:
    debug, pre_run_hooks = False, ()


class Noted:
    """A plan that notes its launches: the way, the stream and the addresses."""

    direct = True

    def __init__(self, launches, can_prepare=True):
        self.launches, self.can_prepare = launches, can_prepare
        self.kernel = Kernel()

    def launch(self, tensors):
        self.launches.append(
            ("ordinary", [tensor if tensor is None else _place(tensor) for tensor in tensors])
        )

    def prepare(self, tensors):
        self.launch(tensors)
        if not self.can_prepare:
            return None
        note = self.launches.append
        return lambda *given: note(("direct", list(given))), lambda stream, given: given


def _place(tensor):
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


@pytest.fixture
def launches(monkeypatch):
    """Return the launches on a GPU that is not there."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    return []


def three(launches, **options):
    """Return a direction of three launches with two temporary operands, and its plannings."""
    plans, planned = [Noted(launches, **options) for _ in range(3)], []

    @Direction
    def direction(s, count, a, b):
        planned.append((count, a.shape, a.strides, a.aligned))
        first, second = s.empty(3, 5), s.empty(7, dtype=torch.float32)
        out, again = s.empty(*a.shape), s.empty(count)
        s.launch(plans[0], a.T, None, first)
        s.launch(plans[1], first, b and b.seen_as((2,), (1,), 3), second)
        s.launch(plans[2], second, out, again)
        return out, None, again

    return direction, planned


def tensors(rows=4):
    return torch.zeros(rows, 8, dtype=torch.bfloat16), torch.zeros(5, dtype=torch.int32)


def test_each_launch_gets_the_addresses_of_its_operands(launches):
    direction, planned = three(launches)
    for turn in range(3):
        a, b = tensors()
        out, nothing, again = direction((6,), a, b)
        assert out.shape == a.shape and again.shape == (6,) and nothing is None
        assert {out.dtype, again.dtype} == {torch.bfloat16}
        way, addresses = zip(*launches[-3:], strict=True)
        if turn == 0:  # tensors, of which a view has its shape
            assert set(way) == {"ordinary"}
            assert addresses[0][0] == (a.data_ptr(), (8, 4), (1, 8), torch.bfloat16)
            assert addresses[1][1] == (b.data_ptr() + 12, (2,), (1,), torch.int32)
            assert addresses[2][0][1:] == ((7,), (1,), torch.float32)
            addresses = [[each and each[0] for each in some] for some in addresses]
        else:
            assert set(way) == {"direct"}
        (a_1, none, first), (first_2, b_2, second), (second_3, out_3, again_3) = addresses
        assert (a_1, none, b_2) == (a.data_ptr(), None, b.data_ptr() + 12)
        assert (out_3, again_3) == (out.data_ptr(), again.data_ptr())
        assert first == first_2 and second == second_3
        if turn:
            assert second - first == 256, "3 * 5 * 2 bytes, and up to the next line"
    assert len(planned) == 1


def test_a_tensor_of_another_layout_is_planned_anew(launches, monkeypatch):
    direction, planned = three(launches)
    a, b = tensors()
    for given in ((6,), a, b), ((6,), a, b), ((7,), a, b), ((6,), *tensors(5)), ((6,), a[::2], b):
        direction(*given)
    direction((6,), a, None)
    direction((6,), a.float(), b)
    assert len(planned) == 6
    monkeypatch.setattr(forms, "forced", "small")
    direction((6,), a, b)
    assert len(planned) == 7


def test_an_odd_address_has_launches_of_its_own(launches):
    """Triton compiles a kernel for addresses that 16 divides, and another one for those it does
    not.
    """
    direction, planned = three(launches)
    a, b = tensors(5)
    odd = a.flatten()[1:33].view(4, 8)
    for given in (odd, a[:4], odd, a[:4]):
        direction((6,), given, b)
    assert [way for way, _ in launches] == ["ordinary"] * 6 + ["direct"] * 6
    assert [aligned for *_, aligned in planned] == [False, True]


def test_a_result_may_have_another_type(launches):
    plan = Noted(launches)

    @Direction
    def direction(s, a):
        out = s.empty(3, dtype=torch.int32)
        s.launch(plan, a, out)
        return (out,)

    for _ in range(2):
        (out,) = direction((), torch.zeros(4, dtype=torch.bool))
        assert out.dtype == torch.int32 and out.shape == (3,)


@pytest.mark.parametrize("who", ["a hook", "the kernel's debug", "no launcher", "a CPU's tensor"])
def test_launches_that_are_watched_or_unknown_are_ordinary(launches, monkeypatch, who):
    direction, _ = three(launches, can_prepare=who != "no launcher")
    a, b = tensors()
    if who == "a hook":
        monkeypatch.setattr(launch, "watched", lambda *kernels: len(kernels) == 3)
    elif who == "the kernel's debug":
        monkeypatch.setattr(launch, "watched", lambda *kernels: any(k.debug for k in kernels))
        direction((6,), a, b)
        direction((6,), a, b)
        assert launches.pop()[0] == "direct"
        launches.clear()
        for plan in direction._kept(None, (6,), 0, _layouts(a, b))[0]._kernels:
            plan.debug = True
    elif who == "a CPU's tensor":
        monkeypatch.setattr(torch.Tensor, "is_cuda", False)
    for _ in range(3):
        direction((6,), a, b)
    assert [way for way, _ in launches] == ["ordinary"] * 9


def _layouts(*tensors):
    return tuple((tensor.shape, None, tensor.dtype, True) for tensor in tensors)


def test_another_device_and_stream_are_others(launches, monkeypatch):
    direction, _ = three(launches)
    a, b = tensors()
    for device in (0, 1, 0, 1):
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda device=device: device)
        direction((6,), a, b)
    assert [way for way, _ in launches] == ["ordinary"] * 6 + ["direct"] * 6


def test_tensors_that_must_be_alike_are_copied_before(launches):
    plan, seen = Noted(launches), []

    def function(s, apart, a, b):
        seen.append((a.strides, b.strides, apart))
        s.launch(plan, *alike(a, b))
        return ()

    direction = Direction(function, pairs=((0, 1),))
    turned, straight = torch.arange(12.0).view(3, 4).T, torch.zeros(4, 3)
    direction((), turned, straight)
    (address, *rest), _ = launches[-1][1]
    assert address != turned.data_ptr() and rest == [(4, 3), (3, 1), torch.float32]
    assert [each[:2] for each in seen] == [((1, 4), (3, 1)), ((3, 1), (3, 1))]
    assert seen[0][2] == straight.data_ptr() - turned.data_ptr()
    with pytest.raises(ValueError, match="shapes"):
        direction((), straight, straight[:3])


def test_columns_of_length_one_are_contiguous_with_any_stride(launches):
    """torch calls them so, and copies nothing."""
    direction, planned = three(launches)
    direction(
        (6,),
        torch.zeros(4, 2, dtype=torch.bfloat16)[:, :1].clone().as_strided((4, 1), (1, 9)),
        None,
    )
    assert planned[0][2] == (1, 1)


def test_zeros_are_filled():
    @Direction
    def direction(s, a):
        return s.zeros(3, 4), s.empty(2)

    for _ in range(2):
        zeros, _ = direction((), torch.ones(5))
        assert torch.equal(zeros, torch.zeros(3, 4))
