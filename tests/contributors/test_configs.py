"""The helper that reads tuned configurations: what it finds, and what it says where it cannot."""

from __future__ import annotations

import importlib.util
import json
import re
from types import SimpleNamespace

import pytest
import torch

from common.measure import machine
from common.paths import CONTRIBUTORS
from common.solutions import Solution

DEVICE = "NVIDIA H200"
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


def gpu(name: str = DEVICE, capability: tuple[int, int] = (9, 0), multiprocessors: int = 132):
    """The properties of a GPU, as far as the helper asks for them."""
    major, minor = capability
    return SimpleNamespace(
        name=name, major=major, minor=minor, multi_processor_count=multiprocessors
    )


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """A copy of the helper in a folder of its own; `save` writes the file beside it."""
    folder = tmp_path / "alice"
    (folder / "configs").mkdir(parents=True)
    path = folder / "configs.py"
    path.write_text((CONTRIBUTORS / "_template" / "configs.py").read_text())
    spec = importlib.util.spec_from_file_location("alice_configs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: gpu())

    def save(*entries, kernel="product", file="nvidia-h200.json", **fields):
        saved = {"schema": SCHEMA, "device": DEVICE, "versions": {}, "kernels": {kernel: entries}}
        (folder / "configs" / file).write_text(json.dumps(saved | fields))

    module.save = save
    module.file = folder / "configs" / "nvidia-h200.json"
    module.product = module.Tuned("product", default=DEFAULT, space=[])
    return module


def notices(capsys) -> list[str]:
    """The lines on stderr, each of which says whose it is and what to do."""
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert not captured.out
    assert all(line.startswith("alice: ") for line in lines)
    assert all("nox -s tune -- alice" in line for line in lines)
    return lines


@pytest.mark.parametrize(
    ("tokens", "block"),
    [
        (0, 16), (16, 16), (32, 16), (33, 64), (64, 64), (255, 64), (257, 1024), (9999, 1024),
    ],
)  # fmt: skip
def test_the_nearest_token_count_is_taken_as_a_ratio(helper, capsys, tokens, block):
    """32 is as far from 16 as from 64, and the smaller one wins, however the file is sorted."""
    helper.save(entry(64, 64), entry(16, 16), entry(1024, 1024))
    assert helper.product(tokens, WIDTHS, like()) == config(block)
    assert not notices(capsys)


def test_widths_and_dtype_are_exact(helper, capsys):
    helper.save(
        entry(16, 1), entry(16, 2, dtype="float16"), entry(16, 3, widths=(2048, 1024)), entry(16, 4)
    )
    assert helper.product(16, WIDTHS, like(torch.float16)) == config(2)
    assert helper.product(16, (2048, 1024), like()) == config(3)
    assert not notices(capsys)
    assert helper.product(16, (2048, 1024), like(torch.float16)) == DEFAULT
    (line,) = notices(capsys)
    assert "(2048, 1024)" in line
    assert "float16" in line


def test_a_device_that_was_never_tuned_is_said_once(helper, capsys):
    helper.save(entry(16, 16), file="nvidia-a100.json", device="NVIDIA A100")
    for widths in (WIDTHS, (1, 1), WIDTHS):
        assert helper.product(16, widths, like()) == DEFAULT
    (line,) = notices(capsys)
    assert f"never tuned on {DEVICE}" in line


# --- files of other devices -----------------------------------------------------------------------


def similar(capability: str, multiprocessors: int):
    return {"compute_capability": capability, "multiprocessors": multiprocessors}


@pytest.fixture
def h100(helper, monkeypatch):
    """The helper on an H100 without a file of its own; `save_as` writes another device's."""
    on = gpu("NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: on)

    def save_as(name, block, fields, **others):
        slug = name.lower().replace(" ", "-")
        helper.save(entry(16, block), file=f"{slug}.json", device=name, **fields, **others)

    helper.save_as = save_as
    return helper


def test_the_file_of_the_nearest_device_of_the_same_capability_is_taken(h100, capsys):
    """By the number of SMs; a device of another capability is never near."""
    h100.save_as("NVIDIA H100 PCIe", 1, similar("9.0", 114))
    h100.save_as("NVIDIA H200", 2, similar("9.0", 140))
    h100.save_as("NVIDIA GH200", 3, similar("9.0", 100))
    h100.save_as("NVIDIA A100", 4, similar("8.0", 132))
    for tokens in (16, 17):
        assert h100.product(tokens, WIDTHS, like()) == config(2)
    (line,) = notices(capsys)
    assert line == (
        "alice: never tuned on NVIDIA H100 80GB HBM3: taking configs/nvidia-h200.json; "
        "nox -s tune -- alice finds better"
    )


@pytest.mark.parametrize(
    ("fields", "others"),
    [
        ({}, {}),
        ({"compute_capability": "9.0"}, {}),
        (similar("9.0", 132), {"schema": SCHEMA + 1}),
        (similar("9.0", 132), {"kernels": [1]}),
        (similar("9.0", "many"), {}),
    ],
    ids=["no fields", "one field", "another schema", "broken", "SMs that are text"],
)
def test_a_file_that_does_not_tell_its_device_serves_that_device_alone(
    h100, capsys, fields, others
):
    """Files of before had neither field; a broken one costs the others nothing."""
    h100.save_as("NVIDIA H200", 2, fields, **others)
    assert h100.product(16, WIDTHS, like()) == DEFAULT
    (line,) = notices(capsys)
    assert "never tuned on NVIDIA H100 80GB HBM3: taking the default" in line


@pytest.mark.parametrize(
    "file", sorted(CONTRIBUTORS.glob("*/configs/*.json")), ids=lambda f: f.stem
)
def test_every_committed_file_tells_its_device(file):
    saved = json.loads(file.read_text())
    assert re.fullmatch(r"\d+\.\d", saved["compute_capability"])
    assert saved["multiprocessors"] > 0


def test_the_digest_of_a_solution_covers_the_files_that_it_may_borrow(h100):
    """A row of an H100 that took the H200's file is of other sources once that file changes."""
    solution = Solution(h100.file.parent.parent / "rope.py", "rope")
    solution.path.write_text("")
    h100.save_as("NVIDIA H200", 2, similar("9.0", 132))
    before = solution.digest
    h100.save_as("NVIDIA H200", 3, similar("9.0", 132))
    assert solution.digest != before


# --- files that are broken ------------------------------------------------------------------------

BROKEN = {
    "no JSON": "{",
    "another schema": {"schema": SCHEMA + 1},
    "of another device": {"device": "NVIDIA A100"},
    "no configuration": {"kernels": {"product": [entry(16, 16) | {"config": 7}]}},
    "no tokens": {"kernels": {"product": [entry(0, 16)]}},
    "no dtype": {"kernels": {"product": [{"tokens": 1, "widths": [1], "config": {}}]}},
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_or_foreign_file_is_said_once(helper, capsys, broken):
    if isinstance(broken, str):
        helper.file.write_text(broken)
    else:
        helper.save(entry(16, 16), **broken)
    for tokens in (16, 17):
        assert helper.product(tokens, WIDTHS, like()) == DEFAULT
    (line,) = notices(capsys)
    assert "nvidia-h200.json is broken or of another device" in line


@pytest.mark.parametrize("other", [{"BLOCK": 128}, config(128) | {"GROUP": 8}])
def test_a_configuration_with_other_names_than_the_default_is_not_taken(helper, capsys, other):
    helper.save(entry(16, 16) | {"config": other})
    for tokens in (16, 17):
        assert helper.product(tokens, WIDTHS, like()) == DEFAULT
    (line,) = notices(capsys)
    assert "BLOCK, num_warps" in line


def test_the_interpreter_takes_the_default_silently(helper, capsys):
    helper.save(entry(16, 16))
    assert helper.product(16, WIDTHS, torch.empty(1, dtype=torch.bfloat16)) == DEFAULT
    assert not notices(capsys)


def test_the_file_is_read_once_and_a_shape_looked_up_once(helper, monkeypatch):
    helper.save(entry(16, 16))
    assert helper.product(16, WIDTHS, like()) == config(16)
    helper.file.unlink()
    assert helper.product(17, WIDTHS, like()) == config(16), "another shape, of what was read"
    monkeypatch.setattr(helper.Tuned, "_choose", None)
    assert helper.product(16, WIDTHS, like()) == config(16)


def test_what_is_forced_goes_before_the_file(helper, capsys):
    """For its shape alone; during a search every other shape takes the default."""
    helper.save(entry(16, 16))
    helper.product.forced = {(16, WIDTHS, torch.bfloat16): config(99)}
    assert helper.product(16, WIDTHS, like()) == config(99)
    assert helper.product(16, WIDTHS, like(torch.float16)) == DEFAULT
    assert helper.product(16, WIDTHS, like(torch.bfloat16, "cpu")) == config(99)
    assert [key[:3] for key in helper.product.asked] == [
        (16, WIDTHS, torch.bfloat16),
        (16, WIDTHS, torch.float16),
        (16, WIDTHS, torch.bfloat16),
    ]
    assert not notices(capsys)


@pytest.mark.parametrize("name", [DEVICE, "AMD Instinct MI300X", " NVIDIA RTX(TM) 6000--Ada! "])
def test_a_device_has_the_same_file_name_here_and_there(helper, monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
    assert helper._slug(name) == machine.results_folder("cuda")
