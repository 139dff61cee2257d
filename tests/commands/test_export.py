"""`study export`: a package that needs nothing of this repository, and what is no package."""

import os
import sys
import tomllib
from pathlib import Path

import pytest

from common import solutions
from common.commands.export import Modules, Package
from common.digest import digest
from common.errors import UserError
from common.paths import ROOT
from tests.support.processes import run
from tests.support.study import RIGHT, one_line

BOARD = ("house/masked_linear", "house/rope_fast", "house/rope_qk_fast", "lkm2835/rope")
BOARD += ("wenhaoli_xmu/masked_ffn",)
OPERATORS = tuple(f"{name}_operator/rotate_half" for name in ("custom", "triton"))
OPERATORS += ("library_kernel/rotate_half", "house/rope_qk_fast")  # no rope beside it


def alone(folder, *words):
    """Run a program beside a user's launch.py, with the package and nothing of ours to import."""
    (folder / "launch.py").write_text("MINE = True")
    paths = os.pathsep.join(map(str, [folder, folder / "my-kernels" / "torch-ext"]))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    ran = run(sys.executable, *words, cwd=folder, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module", params=[BOARD, OPERATORS], ids=["board", "operators"])
def exported(request, tmp_path_factory):
    """A package of three contributors' solutions, or of operators."""
    package = Package(tmp_path_factory.mktemp("export") / "my-kernels")
    corpus = solutions.discover(ROOT / "tests" / "corpus" / "honest")
    by_name = {each.name: each for each in (*solutions.discover(), *corpus)}
    for name in request.param:
        package.add(by_name[name])
    package.write()
    return package


@pytest.mark.slow
def test_its_own_test_is_green_and_no_name_is_taken_from_a_users_process(exported):
    tests = exported.folder / "tests"
    words = "-m pytest -q -p no:cacheprovider -k".split()
    assert " passed" in alone(exported.folder.parent, *words, "not sbhd", tests)  # two formats
    program = """if True:
        import sys, launch, my_kernels
        assert launch.MINE
        stems = {name.rpartition(".")[2] for name in sys.modules if "my_kernels." in name}
        assert {"rope", "masked_ffn", "products"} <= stems or "rotate_half" in stems
        ours = {"common", "tests", "contributors"} | stems - {"launch"}
        assert not ours & sys.modules.keys(), ours & sys.modules.keys()
        import torch
        print(*(name for name in dir(torch.ops) if name in ("house", "honest", "honest_library")))
    """
    assert not alone(exported.folder.parent, "-c", program).strip()


@pytest.mark.slow
def test_pip_installs_it_with_licence_and_data(exported, tmp_path):
    package = exported.folder / "torch-ext" / "my_kernels"
    (package / "adapters" / "TABLE").touch()  # without a suffix
    words = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    alone(exported.folder.parent, *words, "--target", tmp_path, exported.folder)
    licence = tmp_path / "my_kernels-1.0.dist-info" / "licenses" / "LICENSE"
    assert licence.read_text() == (ROOT / "LICENSE").read_text()
    wanted = {path.relative_to(package) for path in package.rglob("*") if path.suffix != ".pyc"}
    assert not [path for path in wanted if not (tmp_path / "my_kernels" / path).exists()]
    configured = any(path.parent.name == "configs" for path in wanted)
    assert configured == ("wenhaoli_xmu" in exported.handles)
    project = tomllib.loads((exported.folder / "pyproject.toml").read_text())["project"]
    assert [each.partition(">")[0] for each in project["dependencies"]] == ["torch", "triton"]
    assert {"numpy", "pytest"} == {*project["optional-dependencies"]["test"]}  # the interpreter's


# --- imports --------------------------------------------------------------------------------------

HELPERS = {"help.py": "TWO = 2", "fast/__init__.py": "from .deep import turn", "fast/deep.py": ""}
IMPORTS = {
    "import help": "from . import help",
    "import help as h, torch, fast.deep": "from . import help as h; import torch;"
    " from .fast import deep as _deep; from . import fast",
    "import fast.deep as d": "from .fast import deep as d",
    "from help import (  # twice\n    TWO,\n)": "from .help import (  # twice\n    TWO,\n)",
    "from fast.deep import *": "from .fast.deep import *",
    "def f():\n    π = 'ü'; from help import TWO": "def f():\n    π = 'ü'; from .help import TWO",
    "try:\n    import numpy\nexcept ImportError:\n    pass": None,
    "if __name__ == '__main__':\n    import matplotlib": None,
    "'''import help'''\nimport importlib, triton\nimportlib.import_module('torch.nn')": None,
}
REFUSED = {
    "import torch\nfrom common.spec import Op": "line 2 of rope.py: from common.spec import Op",
    "def late():\n    import common": "common is a package of this repository",
    "import numpy": "it needs the package numpy",
    "from . import nothing; from .. import bob": "it is outside of the folder",
    "from .nothing import x": "it is outside of the folder",
    "import importlib\nimportlib.import_module(name)": "dynamic import",
    "__import__('help')": "dynamic import",
    "import sys; sys.path.append('x')": "sys.path",
    "open('../bob/table.json')": "it is outside of the folder",
    "Path(__file__).resolve().parent.parent / 'bob'": "it is outside of the folder",
    "import broken": "broken.py: invalid syntax",
    "def rope(": "rope.py: '(' was never closed",
}


@pytest.fixture
def written(tmp_path):
    """Return the texts of an export of a file, with helpers beside it, by path."""

    def export(text, **others):
        folder = tmp_path / "alice"
        for name, content in {"rope.py": text, "broken.py": "1 +", **HELPERS, **others}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        files, out = Modules(folder), tmp_path / "out"
        files.add(Path("rope.py"))
        files.write(out, "mine")
        return {str(path.relative_to(out)): path.read_text() for path in out.rglob("*.py")}

    return export


@pytest.mark.parametrize(("text", "expected"), IMPORTS.items())
def test_an_import_of_the_folder_is_relative(written, text, expected):
    files = written(text)
    assert files["rope.py"] == (expected or text)
    assert ("fast/deep.py" in files) == ("fast" in text)
    assert "broken.py" not in files


def test_a_helper_two_imports_away_goes_with_it_and_relative_imports_stay(written):
    helper = {"help.py": "import fast", "fast/deep.py": "from . import more\nimport far"}
    files = written("import help", **helper, **{"fast/more.py": "", "far.py": ""})
    assert files["fast/deep.py"] == "from . import more\nfrom .. import far"
    assert {"far.py", "fast/more.py", "fast/__init__.py"} <= files.keys()


@pytest.mark.parametrize(("text", "says"), REFUSED.items())
def test_what_is_no_package_is_one_line(written, tmp_path, text, says):
    with pytest.raises(UserError) as refused:
        written(text)
    assert says in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_fault_stops_no_other_export_and_two_solutions_of_an_op_have_two_names(
    study, repository, by_hand, recorded, tmp_path
):
    for handle in ("alice", "김-철수"):
        by_hand(handle, RIGHT)
    by_hand("bob", "from common import spec\n" + RIGHT)
    page = "[a\n쪽](../../docs/rope.md), [a file](rotate_half.py), [him](https://him.example)"
    (repository / "contributors" / "alice" / "README.md").write_text(page)
    names = [f"{handle}/rotate_half" for handle in ("alice", "bob", "김-철수")]
    ran = study("export", *names, "house/rope", "--to", tmp_path / "my_kernels")
    assert "bob/rotate_half is not exported: line 1 of rotate_half.py" in one_line(ran)
    code = (tmp_path / "my_kernels" / "torch-ext" / "my_kernels" / "__init__.py").read_text()
    assert "import rotate_half as 김_철수_rotate_half" in code and "import rope\n" in code
    readme = (tmp_path / "my_kernels" / "README.md").read_text()
    assert "`alice_rotate_half(x, *, interleaved=False)`" in readme
    assert "start_positions=None, cu_seqlens=None)`" in readme, "house/rope takes no cp_size"
    assert "alice/README.md" in readme and "철수/README.md" not in readme, "there is none"
    page = tmp_path / "my_kernels" / "torch-ext" / "my_kernels" / "alice" / "README.md"
    assert page.read_text() == "a\n쪽, [a file](rotate_half.py), [him](https://him.example)"
    assert "2.50" in readme and "gpu, run r1" in readme and "torch 2" in readme
    files = {path for path in page.parents[1].rglob("*.*") if path.suffix != ".json"}
    assert digest(files, words=True) in (page.parents[1] / "metadata.json").read_text()
