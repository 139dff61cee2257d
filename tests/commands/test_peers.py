"""The libraries beside torch: what is installed and how, and a line for each that is not."""

import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common.commands import peers
from common.paths import ROOT

GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
LIBRARIES = [
    "liger_kernel", "flash_linear_attention", "flash_attention", "transformers", "lmdeploy",
    "quack", "transformer_engine",
]  # fmt: skip


@pytest.fixture
def pip(monkeypatch):
    """A pip that notes its arguments and constraints; `fails` are parts of failing commands."""
    fake = SimpleNamespace(calls=[], constraints=[], environments=[], fails=[], there=set())

    def run(command, **how):
        if command[1] == "-m":
            assert command[2:5] == ["pip", "install", "--constraint"]
            fake.constraints.append(Path(command[5]).read_text().splitlines())
            fake.calls.append(command[6:])
            fake.environments.append(how["env"])
        return SimpleNamespace(returncode=any(part in " ".join(command) for part in fake.fails))

    monkeypatch.setattr(peers.subprocess, "run", run)
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: name in fake.there or None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return fake


def lines_of(capsys):
    return dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())


def test_each_library_is_a_line_and_a_failure_costs_no_other(pip, capsys):
    pip.fails += ["fla-core", "import common.peers.quack.masked_ffn, common.peers.quack.masked_li"]
    pip.there |= {"liger_kernel", "quack"}
    assert peers.main([]) == 0
    lines = lines_of(capsys)
    assert list(lines) == LIBRARIES
    assert lines["liger_kernel"] == "already there"
    assert lines["flash_linear_attention"] == "not installed: pip cannot install it"
    assert lines["transformers"] == "installed"
    assert lines["quack"] == "already there: it does not import here"
    for package in ("torch", "triton", "numpy"):  # they stay, with the label of their build
        assert f"{package}=={metadata.version(package)}" in pip.constraints[0]
    assert peers.main(["flash-linear-attention"]) == 1, "it was asked for by name"


def test_an_unknown_name_is_one_line(pip, capsys):
    assert peers.main(["quack", "quark"]) == 2
    assert not pip.calls and capsys.readouterr() == (
        "", f"study: no peer quark: there are {', '.join(LIBRARIES)}\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("library", "cuda"),
    [("transformer_engine", "13.0"), ("flash-attention", "13.0"), ("flash-attention", None)],
)
def test_one_that_is_compiled_gets_its_tools_first_and_this_torch(pip, monkeypatch, library, cuda):
    """flash-attention's Triton rotary needs no CUDA, and its CUDA kernels would take hours."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert peers.main([library]) == 0
    tools, wanted = pip.calls
    group = library.replace("_", "-")
    assert tools == GROUPS[f"build-{group}"]
    assert wanted == ["--no-build-isolation", *GROUPS[f"peers-{group}"]]
    skips = "FLASH_ATTENTION_SKIP_CUDA_BUILD" in pip.environments[1]
    assert skips == (group != "transformer-engine")
    for lines in pip.constraints:  # the headers are those of torch's CUDA
        assert ("cuda-toolkit==13.0.*" in lines) == bool(cuda)


def test_one_that_is_compiled_for_cuda_needs_a_torch_with_it(pip, capsys, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert peers.main(["transformer_engine"]) == 1
    assert not pip.calls
    assert "torch here is built without CUDA" in lines_of(capsys)["transformer_engine"]
