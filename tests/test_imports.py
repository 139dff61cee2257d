"""Imports run one way, nobody imports a solution, and what only reads records needs no torch.

Read from the syntax tree of every file, imports inside functions included. An import for type
checkers alone counts for the direction, since the code knows of the other; it loads no torch.
"""

import ast
from pathlib import Path

import pytest

from common.paths import ROOT

# Who may import what of ours; `common.board` stands for all below it. Whoever is not named may not.
GRADING = {
    "common.arena", "common.exchange", "common.ops", "common.problem", "common.solutions",
    "common.spec", "common.tolerance", "common.worker",
}  # fmt: skip
MAY = {
    "contributors": set(),
    "tests.wrong": set(),
    "tests.cheats": {"common"},  # what they attack
    "noxfile": set(),
    "common": set(),
    "common.__main__": {"common.cli"},
    "common.spec": set(),
    "common.views": set(),
    "common.masks": {"common.spec", "common.views"},
    "common.ops": {"common.masks", "common.ops", "common.spec", "common.views"},
    "common.peers": {"common.ops"},
    "common.solutions": set(),
    "common.records": {"common.solutions"},
    "common.board": {"common.board", "common.records", "common.solutions.UserError"},
    "common.arena": set(),
    "common.interpreter": set(),
    "common.worker": {"common.arena", "common.solutions", "common.spec"},
    "common.tolerance": set(),
    "common.problem": {"common.spec", "common.tolerance"},
    "common.exchange": {"common.arena", "common.problem", "common.spec", "common.worker"},
    "common.grade": GRADING,
    "common.measure.limits": {"common.spec"},
    "common.measure": GRADING | {"common.grade", "common.measure"},
    # the solution's own process: no oracle, no grader
    "common.seal": set(),
    "common.confinement": set(),
    "common.measure.rotation": set(),
    "common.measure.clock": {"common.measure.rotation", "common.measure.stopping"},
    "common.measure.device": set(),
    "common.measure.stopping": set(),
    "common.measure.trace": set(),
    "common.inside": {
        "common.arena", "common.confinement", "common.inside", "common.interpreter",
        "common.measure.clock", "common.measure.rotation", "common.measure.trace", "common.ops",
        "common.seal", "common.spec",
    },
    # a solution by itself under a profiler, in a process that grades nothing
    "common.solo": {
        "common.inside", "common.measure.clock", "common.ops", "common.problem", "common.spec",
    },
    # the same under sanitizers; nobody imports these two
    "common.smoke": {"common.inside", "common.ops", "common.solo", "common.spec"},
    "common.symbolic": {"common.inside", "common.ops", "common.solo", "common.spec"},
    "common.profile": GRADING | {
        "common.bench", "common.board", "common.measure", "common.records", "common.sweep",
    },
    "common.sweep": GRADING | {"common.grade"},
    "common.bench": GRADING | {"common.grade", "common.measure", "common.records", "common.sweep"},
    "common.points": {"common.records", "common.spec"},
    "common.tune": GRADING | {
        "common.bench", "common.grade", "common.measure", "common.points", "common.sweep",
    },
    "common.sanitize": {"common.solutions", "common.spec"},
    "common.template": {"common.solutions"},
    "common.check": GRADING | {
        "common.bench", "common.board", "common.grade", "common.records", "common.sweep",
    },
    "common.cli": GRADING | {
        "common.bench", "common.board", "common.check", "common.grade", "common.points",
        "common.profile", "common.records", "common.sanitize", "common.sweep", "common.template",
        "common.tune",
    },
    "conftest": {"common"},
    "tests": {"common", "conftest", "tests"},
}  # fmt: skip
# Nobody imports these, whatever else is allowed; a peer's folder has helpers of its own.
PRIVATE = {
    "contributors": set(),
    "tests.wrong": set(),
    "tests.cheats": set(),
    "common.peers": {"common.peers"},
    "common.inside": {
        "common.inside",
        "common.smoke",
        "common.solo",
        "common.symbolic",
        "tests",
    },
}
LIGHT = (
    "common.board",
    "common.cli",
    "common.points",
    "common.records",
    "common.sanitize",
    "common.solutions",
    "common.spec",
    "noxfile",
)
HEAVY = {"torch", "triton"}
OURS = ("common", "contributors", "tests", "conftest", "noxfile")
LOADERS = {"import_module", "__import__", "spec_from_file_location", "run_path", "run_module"}
MAY_LOAD = ("common.ops", "common.inside", "tests")


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> dict[str, str]:
    folders = (path for top in OURS[:3] for path in (ROOT / top).rglob("*.py"))
    files = [*folders, *ROOT.glob("*.py")]
    return {name_of(path): path.read_text() for path in files if ours(path) or parses(path)}


def ours(path: Path) -> bool:
    return not path.is_relative_to(ROOT / "contributors") and path.parent.name != "syntax_error"


def parses(path: Path) -> bool:
    """Else it imports nothing, and the grader says so of it alone."""
    try:
        return bool(ast.parse(path.read_bytes()).body) and path.read_text() is not None
    except (SyntaxError, ValueError):
        return False


SOURCES = sources()


def within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def closest(name: str, table) -> str | None:
    return max((part for part in table if within(name, part)), key=len, default=None)


def for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(tree: ast.AST, at_import: bool):
    """Every import statement; `at_import`, those alone that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        if at_import and for_type_checkers(node):
            yield from statements(ast.Module(node.orelse, []), True)
        elif not (at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from statements(node, at_import)


def imported(module: str, source: str, at_import: bool = False) -> set[str]:
    """Dotted names: `from common import spec` is `common.spec`.

    A relative import is named from the top, as if it had been written so.
    """
    names = set()
    for node in statements(ast.parse(source), at_import):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
            continue
        base = module.split(".")[: -node.level] if node.level else []
        start = ".".join([*base, *filter(None, [node.module])])
        names |= {f"{start}.{alias.name}" for alias in node.names}
    return names


def loads(source: str) -> set[str]:
    """Imports made by a call."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {ast.unparse(call.func).rpartition(".")[2] for call in calls} & LOADERS


def offences(module: str, source: str) -> list[str]:
    found = []
    allowed = MAY.get(closest(module, MAY) or "", set())
    for name in sorted(imported(module, source)):
        if not name.startswith(OURS) or closest(name, OURS) is None:
            continue
        private = closest(name, PRIVATE)
        if private and not closest(module, PRIVATE[private]):
            found.append(f"{module} imports {name}, which nobody may")
        elif not private and not closest(name, allowed):
            found.append(f"{module} imports {name}")
    if loads(source) and not closest(module, MAY_LOAD):
        found.append(f"{module} calls {', '.join(loads(source))}")
    return found


def heavy(module: str, sources: dict[str, str], seen: set[str]) -> set[str]:
    """What of HEAVY is imported as soon as the module is, by whatever it imports in turn."""
    if module in seen:
        return set()
    seen.add(module)
    found: set[str] = set()
    for name in imported(module, sources.get(module, ""), at_import=True):
        found |= {name.partition(".")[0]} & HEAVY
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            found |= heavy(".".join(parts[:end]), sources, seen)
    return found


def test_every_import_runs_the_designs_way():
    found = [line for module, source in SOURCES.items() for line in offences(module, source)]
    assert not found, "\n".join(found)


def test_every_file_of_the_harness_has_its_line_in_the_table():
    ours = {module for module in SOURCES if module.startswith("common.")}
    assert len(ours) > 20
    assert not {module for module in ours if closest(module, MAY) == "common"}


@pytest.mark.parametrize("light", LIGHT)
def test_no_torch_where_only_records_are_read(light):
    modules = [module for module in SOURCES if within(module, light)]
    assert modules
    for module in modules:
        assert not heavy(module, SOURCES, set()), module


def test_the_board_has_no_torch_in_its_functions_either():
    for module in (module for module in SOURCES if within(module, "common.board")):
        names = imported(module, SOURCES[module])
        assert not {name.partition(".")[0] for name in names} & HEAVY, module


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("contributors.alice.rope", "from common.ops.rope import reference"),
        ("contributors.alice.rope", "import contributors.house.rope"),
        ("contributors.alice.rope", "import importlib\nimportlib.import_module('common.grade')"),
        ("common.ops.rope", "from common import grade"),
        ("common.ops.rope", "from ..worker import Worker"),
        ("common.spec", "from common.views import randn"),
        ("common.board.table", "from common.grade import Verdict"),
        ("common.board.table", "def draw():\n    from common import bench"),
        ("common.board.table", "if TYPE_CHECKING:\n    from common.spec import Case"),
        ("common.board.table", "from common.solutions import discover"),
        ("common.records", "import common.spec"),
        ("common.measure.clock", "from common.grade import make_problem"),
        ("common.inside", "from common.grade import make_problem"),
        ("common.grade", "from common import sweep"),
        ("common.grade", "from common.inside import load"),
        ("common.cli", "from common.peers.eager import rope"),
        ("common.cli", "def run():\n    import contributors.house.rope"),
        ("common.sweep", "import runpy\nrunpy.run_path('contributors/house/rope.py')"),
        ("common.newcomer", "from common import spec"),
        ("tests.test_rope", "from common.peers.eager.rope import rope"),
        ("tests.test_rope", "from tests.wrong.in_place import rope"),
    ],
)
def test_an_import_the_other_way_is_found(module, source):
    assert offences(module, source)


@pytest.mark.parametrize(
    ("source", "loads_torch"),
    [
        ("import torch.nn", True),
        ("from torch import nn", True),
        ("try:\n    import torch\nexcept ImportError:\n    pass", True),
        ("class Late:\n    import torch", True),
        ("from common import deep", True),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import torch", True),
        ("if TYPE_CHECKING:\n    import torch", False),
        ("def late():\n    import torch", False),
        ("import torchless", False),
    ],
)
def test_torch_is_found_however_deep(source, loads_torch):
    sources = {"common.top": source, "common.deep": "from common import deeper"}
    sources["common.deeper"] = "import triton"
    assert bool(heavy("common.top", sources, set())) == loads_torch
