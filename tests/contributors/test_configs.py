"""The helper that reads tuned configurations: what it finds, and what it says where it cannot."""

import importlib.util
import json
import re
from types import SimpleNamespace

import pytest
import torch

from common.paths import CONTRIBUTORS

DEVICE, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
SCHEMA = 1
DEFAULT = {"BLOCK": 64, "num_warps": 4}
WIDTHS = (1024, 2048)


def config(block: int) -> dict[str, int]:
    return {"BLOCK": block, "num_warps": 8}


def entry(tokens: int, block: int, widths=WIDTHS, dtype: str = "bfloat16"):
    return {"tokens": tokens, "widths": list(widths), "dtype": dtype, "config": config(block)}


def like(dtype=torch.bfloat16, device: str = "cuda:0"):
    """All that the helper wants of a tensor; one on a GPU that is not here."""
    return SimpleNamespace(dtype=dtype, device=torch.device(device))


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """A copy of the helper in a folder of its own, on an H200; `save` writes a device's file."""
    folder = tmp_path / "alice"
    (folder / "configs").mkdir(parents=True)
    path = folder / "configs.py"
    path.write_text((CONTRIBUTORS / "_template" / "configs.py").read_text())
    spec = importlib.util.spec_from_file_location("alice_configs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    gpu = SimpleNamespace(name=DEVICE, major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: gpu)

    def save(*entries, device=DEVICE, **fields):
        kernels = {"product": entries}
        saved = {"schema": SCHEMA, "device": device, "versions": {}, "kernels": kernels}
        name = device.lower().replace(" ", "-")
        (folder / "configs" / f"{name}.json").write_text(json.dumps(saved | fields))

    module.save, module.gpu = save, gpu
    module.file = folder / "configs" / "nvidia-h200.json"
    module.product = module.Tuned("product", default=DEFAULT, space=[])
    return module


def notices(capsys) -> list[str]:
    """The lines on stderr, each of which says whose it is and what to do."""
    lines = capsys.readouterr().err.splitlines()
    assert all(re.fullmatch("alice: .*nox -s tune -- alice finds better", line) for line in lines)
    return lines


@pytest.mark.parametrize(
    ("tokens", "block"),
    [(0, 16), (16, 16), (32, 16), (33, 64), (64, 64), (255, 64), (257, 1024), (9999, 1024)],
)
def test_the_nearest_token_count_is_taken_as_a_ratio(helper, capsys, tokens, block):
    """32 is as far from 16 as from 64, and the smaller one wins, however the file is sorted."""
    helper.save(entry(64, 64), entry(16, 16), entry(1024, 1024))
    assert helper.product(tokens, WIDTHS, like()) == config(block)
    assert not notices(capsys)


def test_widths_and_dtype_are_exact(helper, capsys):
    turned = WIDTHS[::-1]
    helper.save(entry(16, 2, dtype="float16"), entry(16, 3, widths=turned), entry(16, 4))
    assert helper.product(16, WIDTHS, like(torch.float16)) == config(2)
    assert helper.product(16, turned, like()) == config(3)
    assert not notices(capsys)
    assert helper.product(16, turned, like(torch.float16)) == DEFAULT
    (line,) = notices(capsys)
    assert "(2048, 1024) in float16" in line


# --- files of other devices -----------------------------------------------------------------------


def similar(capability: str, multiprocessors: int):
    return {"compute_capability": capability, "multiprocessors": multiprocessors}


def test_the_file_of_the_most_similar_device_is_taken_and_said_once(helper, capsys):
    """By the number of SMs; a device of another capability is never near."""
    helper.gpu.name = H100
    for block, name, fields in (
        (1, "NVIDIA H100 PCIe", similar("9.0", 114)),
        (2, DEVICE, similar("9.0", 140)),
        (3, "NVIDIA A100", similar("8.0", 132)),
    ):
        helper.save(entry(16, block), device=name, **fields)
    for tokens in (16, 17):
        assert helper.product(tokens, WIDTHS, like()) == config(2)
    (line,) = notices(capsys)
    assert f"never tuned on {H100}: taking configs/nvidia-h200.json;" in line


@pytest.mark.parametrize("fields", [{}, similar("9.0", "many"), {"kernels": [1]}])
def test_a_file_without_its_device_s_properties_serves_no_other(helper, capsys, fields):
    """Files of before have none."""
    helper.gpu.name = H100
    helper.save(entry(16, 2), **fields)
    assert helper.product(16, WIDTHS, like()) == DEFAULT
    (line,) = notices(capsys)
    assert f"never tuned on {H100}: taking the default" in line


# --- what is not taken ----------------------------------------------------------------------------

BROKEN = {
    "no JSON": "{",
    "another schema": {"schema": SCHEMA + 1},
    "of another device": {"device": "NVIDIA A100"},
    "no configuration": {"kernels": {"product": [entry(16, 16) | {"config": 7}]}},
    "no tokens": {"kernels": {"product": [entry(0, 16)]}},
    "no dtype": {"kernels": {"product": [{"tokens": 1, "widths": [1], "config": {}}]}},
    "fewer names": {"kernels": {"product": [entry(16, 16) | {"config": {"BLOCK": 128}}]}},
    "more names": {"kernels": {"product": [entry(16, 16) | {"config": config(1) | {"G": 8}}]}},
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_or_foreign_file_is_said_once(helper, capsys, broken):
    helper.save(entry(16, 16))
    saved = json.loads(helper.file.read_text())
    helper.file.write_text(broken if isinstance(broken, str) else json.dumps(saved | broken))
    for tokens in (16, 17):
        assert helper.product(tokens, WIDTHS, like()) == DEFAULT
    (line,) = notices(capsys)
    assert "nvidia-h200.json is broken or of another device" in line or "BLOCK, num_warps" in line


def test_what_is_forced_goes_before_the_file(helper, capsys):
    """For its shape alone; during a search every other shape takes the default."""
    helper.save(entry(16, 16))
    helper.product.forced = {(16, WIDTHS, torch.bfloat16): config(99)}
    assert helper.product(16, WIDTHS, like(device="cpu")) == config(99)
    assert helper.product(16, WIDTHS, torch.empty(1, dtype=torch.float16)) == DEFAULT
    assert helper.product(16, WIDTHS, like(torch.float16)) == DEFAULT
    asked = [dtype for _, _, dtype, _ in helper.product.asked]
    assert asked == [torch.bfloat16, torch.float16, torch.float16]
    assert not notices(capsys)
