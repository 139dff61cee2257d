"""The configurations that are kept for quack and Liger: what the files hold, and what is taken."""

import importlib.util
import json
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import triton
from triton.runtime.autotuner import Autotuner

from common.paths import PEERS
from tests.generators import tuned_peers

DEVICE, VERSION = "NVIDIA H200", "1.2.3"
QUACK, LIGER = (f"{DEVICE}, {each} {VERSION}" for each in tuned_peers.DISTRIBUTIONS.values())
FIELDS = set(
    "tile_m tile_n tile_k num_warps pingpong is_dynamic_persistent cluster_m cluster_n cluster_k"
    " split_k swap_ab max_swizzle_size device_capacity use_tma_gather".split()
)
"""The fields of quack 0.6.5's configuration."""


@pytest.mark.parametrize("library", tuned_peers.OPS)
def test_every_kept_configuration_can_be_taken(library):
    for where, products in json.loads(tuned_peers.file_of(library).read_text()).items():
        assert re.fullmatch(rf"\S.*, {tuned_peers.DISTRIBUTIONS[library]} \d[\w.]*", where)
        assert products
        for product, fields in products.items():
            tensors = re.fullmatch(r"(?:gemm|\w+_(?:epi|kernel))(\(.+\))", product)[1]
            first, *_, dtype = eval(tensors, {"torch": torch})
            if library == "quack":
                assert isinstance(first, tuple) and isinstance(dtype, torch.dtype)
                assert fields.keys() <= FIELDS
            else:
                assert isinstance(first, int) and dtype.startswith("torch.")
                assert triton.Config(**fields).kwargs


def test_the_docs_name_what_is_kept():
    _, _, *rows = tuned_peers.table().splitlines()
    assert all("masked_" in row for row in rows)
    assert tuned_peers.in_the_docs("tuned", tuned_peers.table(), False, "peers")


def imported(monkeypatch, file, **modules):
    """Import an adapter's file with a made-up library."""
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name.replace("__", "."), module)
    spec = importlib.util.spec_from_file_location("made_up", PEERS / f"{file}.py")
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    return adapter


def tile_of_quack(monkeypatch, version, tokens):
    """Return the tile of the made-up quack's product; the adapter keeps one for 64 tokens."""

    class Tuner:
        """As quack's, which looks for an earlier search before it searches."""

        fn = SimpleNamespace(__name__="gemm_tuned")
        keys = ("dynamic_scheduler",)
        cache = {}  # noqa: RUF012

    routing = imported(
        monkeypatch,
        "quack/routing",
        quack={"gemm_interface": SimpleNamespace(gemm=None, gemm_gated=print, gemm_dgated=print)},
        quack__autotuner={"VERSION": version, "AutotuneConfig": dict, "Autotuner": Tuner},
        quack__gemm_config={"GemmConfig": dict, "default_config": lambda _: {"tile_m": 1}},
    )
    product = tuned_peers.product(Tuner, (False, ((64, 8), torch.float16)))
    monkeypatch.setattr(routing, "KEPT", {QUACK: {product: {"tile_m": 256}}})
    key = (False, ((tokens, 8), torch.float16))
    Tuner().check_disk_cache(key, [], pytest.fail)
    return Tuner.cache[key]["config"]["tile_m"]


def tile_of_liger(monkeypatch, version, width):
    """Return the block of the made-up Liger's kernel; the adapter keeps one for a width of 64."""

    def a_kernel(x, width):
        """Is not launched."""

    def tuner(*blocks):
        launched = SimpleNamespace(fn=a_kernel, run=lambda *_, BLOCK, **options: BLOCK)
        configs = [triton.Config({"BLOCK": block}) for block in blocks]
        return Autotuner(launched, ["x", "width"], configs, ["width"], None, None)

    pinned, searching = tuner(1), tuner(2, 3)
    liger = imported(
        monkeypatch,
        "liger_kernel/masked_ffn",
        liger_kernel={},
        liger_kernel__ops={
            "fused_moe_kernels": SimpleNamespace(pinned=pinned, searching=searching, tl=triton)
        },
        liger_kernel__ops__fused_moe={"LigerFusedMoEFunction": None},
    )
    monkeypatch.setattr(liger, "version", {"liger-kernel": version}.get)
    kept = {"a_kernel(64, 'torch.float32')": {"kwargs": {"BLOCK": 256}}}
    monkeypatch.setattr(liger, "KEPT", {LIGER: kept})
    assert not searching.cache_results  # a user's own search stays
    return pinned.run(torch.empty(4), width=width)


@pytest.mark.parametrize("tile_of", [tile_of_quack, tile_of_liger])
@pytest.mark.parametrize(
    ("device", "version", "size", "tile"),
    [
        (DEVICE, VERSION, 64, 256),
        (DEVICE, VERSION, 65, 1),
        ("NVIDIA B200", VERSION, 64, 1),
        (DEVICE, "2", 64, 1),
    ],
)
def test_what_is_kept_for_device_version_and_product_is_taken(
    monkeypatch, tile_of, device, version, size, tile
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: device)
    assert tile_of(monkeypatch, version, size) == tile
