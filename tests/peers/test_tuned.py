"""The configurations that are kept for quack: what the file holds, and what the adapter takes."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from types import SimpleNamespace

import pytest
import torch

from common.paths import PEERS
from tests.generators import tuned_peers

DEVICE, VERSION = "NVIDIA H200", "1.2.3"
HERE = f"{DEVICE}, quack-kernels {VERSION}"
FIELDS = set(
    "tile_m tile_n tile_k num_warps pingpong is_dynamic_persistent cluster_m cluster_n cluster_k"
    " split_k swap_ab max_swizzle_size device_capacity use_tma_gather".split()
)
"""The fields of quack 0.6.5's configuration."""


def test_every_kept_configuration_can_be_taken():
    for where, products in json.loads(tuned_peers.FILE.read_text()).items():
        assert re.fullmatch(r"\S.*, quack-kernels \d[\w.]*", where)
        assert products
        for product, fields in products.items():
            tensors = re.fullmatch(r"(?:gemm|mod_\w+)(\(.+\))", product)[1]
            *shapes, dtype = eval(tensors, {"torch": torch})
            assert isinstance(shapes[0], tuple) and isinstance(dtype, torch.dtype)
            assert fields.keys() <= FIELDS


def test_the_docs_name_what_is_kept():
    _, _, *rows = tuned_peers.table().splitlines()
    assert all("masked_" in row for row in rows)
    assert tuned_peers.in_the_docs("tuned", tuned_peers.table(), False, "peers")


@pytest.mark.parametrize(
    ("device", "version", "tokens", "tile"),
    [
        (DEVICE, VERSION, 64, 256),
        (DEVICE, VERSION, 65, 1),
        ("NVIDIA B200", VERSION, 64, 1),
        (DEVICE, "2", 64, 1),
    ],
)
def test_quack_takes_what_is_kept_for_device_version_and_product(
    monkeypatch, device, version, tokens, tile
):
    class Autotuner:
        """As quack's, which looks for an earlier search before it searches."""

        fn = SimpleNamespace(__name__="gemm_tuned")
        keys = ("dynamic_scheduler",)

        def __init__(self):
            self.cache = {}

        def __call__(self, *tensors):
            key = (False, *((tuple(each.shape), each.dtype) for each in tensors))
            self.check_disk_cache(key, [], pytest.fail)
            return self.cache[key].config

    config, default = (lambda config: SimpleNamespace(config=config)), SimpleNamespace(tile_m=1)
    gemms = SimpleNamespace(gemm=None, gemm_gated=print, gemm_dgated=print)
    tuners = {"VERSION": version, "AutotuneConfig": config, "Autotuner": Autotuner}
    configs = {"GemmConfig": SimpleNamespace, "default_config": lambda _: default}
    for name, contents in {
        "quack": {"gemm_interface": gemms}, "quack.autotuner": tuners, "quack.gemm_config": configs
    }.items():  # fmt: skip
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**contents))
    spec = importlib.util.spec_from_file_location("made_up", PEERS / "quack" / "routing.py")
    routing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(routing)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: device)
    product = tuned_peers.product(Autotuner, (False, ((64, 8), torch.float16)))
    monkeypatch.setattr(routing, "KEPT", {HERE: {product: {"tile_m": 256}}})
    assert Autotuner()(torch.empty(tokens, 8, dtype=torch.float16)) == SimpleNamespace(tile_m=tile)
