"""Imports run one way: the table of files and folders of common/, and what each may import.

Read from the syntax tree of every file, imports inside functions included. An import for type
checkers alone counts for the direction; it loads no torch.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from common.folders import OURS, imported
from common.paths import ROOT

SHARED = (
    "errors digest disk_cache spec paths peaks printable processes wire verdicts source stats"
    " timed_requests folders interfaces solutions arena gradients"
)
GRADING = f"{SHARED} draws ops records grading"
MAY = {
    **dict.fromkeys(
        "errors digest draws gradients paths peaks printable processes spec stats wire".split(), ""
    ),
    "disk_cache": "digest paths printable",
    "source": "printable",
    "arena": "wire",
    "timed_requests": "wire",
    "verdicts": "errors source spec",
    "interfaces": "errors paths printable",
    "folders": "paths",
    "solutions": "digest errors folders interfaces paths printable",
    "ops": f"{SHARED}",
    "records": f"{SHARED}",
    "peers": "errors ops",
    "sandbox": f"{SHARED} ops",
    "grading": f"{SHARED} draws ops",
    "measure": f"{GRADING}",
    "engines": f"{GRADING} measure",
    "board": "digest disk_cache errors folders interfaces paths peaks printable records solutions"
    " stats",
    "commands": f"{GRADING} measure engines board",
    "cli": "errors commands folders paths printable solutions",
    "__main__": "cli",
}
"""The files and folders of common/, and those that each of them may import."""
NO_TORCH = (
    "board cli digest errors folders interfaces disk_cache paths peaks printable processes records"
    " solutions source spec stats verdicts"
).split()
"""The files and folders whose import loads no torch; a board needs none."""
LOADERS = {"import_module", "__import__", "spec_from_file_location", "run_path", "run_module"}
MAY_LOAD = ("common/ops/__init__.py", "common/sandbox/contract.py", "common/cli.py")
"""Files that import a module whose name they compute."""
GENERATORS = ROOT / "tests" / "generators"
CORPUS = ROOT / "tests" / "corpus"
CORPORA = tuple(f"tests.corpus.{name}." for name in ("wrong", "cheats", "honest"))
"""Solutions to grade, which are read and run as contributors' are."""
RUNS_TESTS = {ROOT / "tests" / "ops" / "test_shaped.py"}
"""The files that may import test modules: they run their tests on ops of their own."""


def package_of(path: Path) -> str:
    """Return the folder or file of common/ that a file belongs to, or its top folder."""
    top, *rest = path.relative_to(ROOT).with_suffix("").parts
    return rest[0] if top == "common" and rest else top


def offences(package: str, source: str) -> list[str]:
    """Return the imports of a source in that package that the table does not allow."""
    imports = []
    for name in sorted(imported(source)):
        top, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        private = top in ("contributors", "") or name.startswith(CORPORA)
        upward = top == "common" and target not in (package, *MAY.get(package, "").split())
        heavy = package == "board" and top in ("torch", "triton")
        if private or upward or heavy:
            imports.append(f"{package} imports {name}")
    return imports


def loads(source: str) -> set[str]:
    """Return the functions called that import a module by its name."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {ast.unparse(call.func).rpartition(".")[2] for call in calls} & LOADERS


def files(*tops: str) -> list[Path]:
    """Return the Python files below these folders, less those that cannot be parsed."""
    paths = [path for top in tops for path in (ROOT / top).rglob("*.py")]
    return [path for path in paths if path.parent.name != "syntax_error"]


@pytest.mark.parametrize("path", files("common"), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_the_designs_way(path):
    package = package_of(path)
    assert package in MAY or path.name == "__init__.py", f"{package} has no line in the table"
    assert not offences(package, path.read_text())
    by_name = str(path.relative_to(ROOT)) in MAY_LOAD
    assert by_name or not loads(path.read_text())


def test_the_table_has_no_circle():
    """None may import itself through others, and none a solution's side."""
    assert not {"sandbox", "peers"} & {name for may in MAY.values() for name in may.split()}
    standing = set()
    while open_packages := MAY.keys() - standing:
        free = {one for one in open_packages if set(MAY[one].split()) - {one} <= standing}
        assert free, f"a circle among {sorted(open_packages)}"
        standing |= free


def test_a_class_name_means_one_class():
    trees = (ast.parse(path.read_text()) for path in files("common") if "peers" not in path.parts)
    names = [one.name for tree in trees for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]
    assert len(names) > 100 and sorted(names) == sorted({*names})


def test_a_solution_imports_nothing_of_ours():
    for path in files("contributors", "tests/corpus/wrong"):
        if path.is_relative_to(ROOT / "contributors"):
            assert not {n.partition(".")[0] for n in imported(path.read_text())} & OURS
        assert not loads(path.read_text()), path


@pytest.mark.slow
def test_tests_import_no_solution_and_no_test_module():
    """What several tests need is in tests/support; a generator is no test, but a program."""
    solutions = ("contributors", "common.peers", *CORPORA)
    checked = [
        path
        for path in files("tests")
        if path.parent == CORPUS or not {CORPUS, GENERATORS} & {*path.parents}
    ]
    assert {*RUNS_TESTS, CORPUS / "test_wrong.py"} <= set(checked)
    for path in [*checked, ROOT / "conftest.py", ROOT / "noxfile.py"]:
        names = imported(path.read_text())
        assert not [name for name in names if name.startswith(solutions)], path
        ours = [name for name in names if name.startswith(("tests.", "."))]
        parts = {part for name in ours for part in name.split(".")}
        borrowed = [part for part in parts if part.startswith("test_")]
        assert path in RUNS_TESTS or not borrowed, path


@pytest.mark.slow
def test_a_board_needs_no_torch():
    """Every module of them is imported by a fresh Python that has torch and triton hidden."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in files("common")
        if package_of(path) in NO_TORCH
    ]
    assert len(modules) > len(NO_TORCH)
    hide = "import sys; sys.modules['torch'] = sys.modules['triton'] = None; "
    code = hide + "; ".join(f"import {module}" for module in modules)
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
