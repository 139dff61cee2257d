"""The libraries beside torch: what is installed and how, and a line for each that is not."""

from __future__ import annotations

import argparse
import sys
import tomllib
from importlib import metadata
from types import SimpleNamespace

import pytest

from common.commands import bench
from common.paths import ROOT
from common.tools import peers

GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
LIBRARIES = [
    "liger_kernel", "flash_linear_attention", "flash_attention", "transformers", "quack",
    "transformer_engine",
]  # fmt: skip


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """A pip that notes its arguments and constraints; `there` holds the packages it installed."""
    fake = SimpleNamespace(
        calls=[], constraints=[], environments=[], fails={}, there=set(), imported=[], imports=""
    )

    def run(command, **how):
        if command[1] == "-c":
            fake.imported.append(command[2])
            return SimpleNamespace(returncode=bool(fake.imports), stderr=fake.imports)
        assert command[:5] == [sys.executable, "-m", "pip", "install", "--constraint"]
        with open(command[5]) as file:
            fake.constraints.append(file.read().splitlines())
        fake.calls.append(command[6:])
        fake.environments.append(how["env"])
        asked = " ".join(command[6:])
        output = next((text for name, text in fake.fails.items() if name in asked), "")
        if not output:
            fake.there |= {"liger_kernel"} if "liger" in command[-2] else set()
        return SimpleNamespace(returncode=bool(output), stdout=output)

    monkeypatch.setattr(peers.subprocess, "run", run)
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: name in fake.there or None)
    monkeypatch.setattr(peers, "_torchs_cuda", lambda: "13.0")
    monkeypatch.setattr(peers.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    return fake


@pytest.mark.slow
def test_all_are_installed_with_a_line_each(pip, capsys):
    assert peers.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == LIBRARIES
    assert all(line.split(": ")[1].startswith("installed") for line in lines)
    assert pip.calls[0] == GROUPS["peers-liger-kernel"]
    pip.calls.clear()
    assert peers.main(["liger-kernel"]) == 0 and not pip.calls
    assert capsys.readouterr().out.startswith("liger_kernel: already there")


def test_a_library_that_cannot_be_had_costs_the_others_nothing(pip, capsys, tmp_path):
    pip.fails["fla-core"] = "ERROR: No matching distribution found for x"
    pip.there.add("liger_kernel")
    assert peers.main([]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    log = tmp_path / "flash_linear_attention.log"
    assert line == (
        "flash_linear_attention: not installed: ERROR: No matching distribution found for x"
        f" (pip's output: {log})"
    )
    assert log.read_text().startswith("ERROR")
    assert peers.main(["flash-linear-attention"]) == 1, "it was asked for by name"


def test_an_unknown_name_is_one_line(pip, capsys):
    assert peers.main(["quack", "quark"]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"study: no peer quark: there are {', '.join(LIBRARIES)}\n"
    assert not captured.out
    assert not pip.calls


@pytest.mark.parametrize(
    ("library", "cuda"),
    [("transformer_engine", "13.0"), ("flash-attention", "13.0"), ("flash-attention", None)],
)
def test_one_that_is_compiled_gets_its_tools_first_and_this_torch(pip, monkeypatch, library, cuda):
    """flash-attention's Triton rotary needs no CUDA, and its CUDA kernels would take hours."""
    monkeypatch.setattr(peers, "_torchs_cuda", lambda: cuda)
    assert peers.main([library]) == 0
    tools, wanted = pip.calls
    group = library.replace("_", "-")
    assert tools == GROUPS[f"build-{group}"]
    assert wanted == ["--no-build-isolation", *GROUPS[f"peers-{group}"]]
    assert pip.environments[1].get("FLASH_ATTENTION_SKIP_CUDA_BUILD", "TRUE") == "TRUE"
    assert ("FLASH_ATTENTION_SKIP_CUDA_BUILD" in pip.environments[1]) == (
        group != "transformer-engine"
    )
    for lines in pip.constraints:  # the headers are those of torch's CUDA
        assert ("cuda-toolkit==13.0.*" in lines) == bool(cuda)


def test_one_that_is_compiled_for_cuda_needs_a_torch_with_it(pip, capsys, monkeypatch):
    monkeypatch.setattr(peers, "_torchs_cuda", lambda: None)
    assert peers.main(["transformer_engine"]) == 1
    assert not pip.calls
    (line,) = capsys.readouterr().out.splitlines()
    assert "not installed: it is compiled for CUDA, and torch here is built without" in line


def test_an_installed_library_is_imported_as_its_peers_import_it(pip, capsys):
    """TransformerEngine and flash-attention import, or do not, whatever their peers need."""
    pip.imports = "Traceback\n  File\nOSError: libcuda.so.1: cannot open\n"
    assert peers.main(["quack"]) == 0
    assert capsys.readouterr().out == (
        "quack: installed, but does not import here: OSError: libcuda.so.1: cannot open\n"
    )
    for package in ("torch", "triton", "numpy"):  # they stay, with the label of their build
        assert f"{package}=={metadata.version(package)}" in pip.constraints[0]
    assert pip.imported == [
        "import common.peers.quack.masked_ffn, common.peers.quack.masked_linear, "
        "common.peers.quack.rope, common.peers.quack.routing"
    ]


# --- what `bench` says at its start ---------------------------------------------------------------

ABSENT = dict.fromkeys(LIBRARIES, "the package is not installed")


@pytest.mark.parametrize(
    ("op", "only", "absent", "names"),
    [
        (None, None, ABSENT, ", ".join(sorted(LIBRARIES))),
        ("masked_linear", None, ABSENT, "quack"),
        ("rotate_half", None, ABSENT, ""),
        (None, "house", ABSENT, ""),
        (None, None, {}, ""),
    ],
)
def test_bench_names_the_missing_peers_of_the_op_and_the_command(
    monkeypatch, op, only, absent, names
):
    asked = argparse.Namespace(op=op, only=only)
    for prefix, command in (("/usr", "python -m common.tools.peers"),
                            (str(ROOT / ".nox" / "study"), "nox -s peers")):  # fmt: skip
        monkeypatch.setattr(sys, "prefix", prefix)
        line = f"not on the board: {names} ({command} installs them)" if names else ""
        assert bench.missing_peers(asked, absent) == line
