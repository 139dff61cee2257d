"""Programs that are started by name exist, so that a move cannot break them silently."""

import ast
import importlib.util
import re

from common.paths import COMMON

MODULE = re.compile(r"common(\.[a-z_]+)+")


def named():
    """Each string in the code that is a module's name, with its file."""
    for path in sorted(COMMON.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            value = getattr(node, "value", None)
            if isinstance(node, ast.Constant) and MODULE.fullmatch(str(value)):
                yield path.relative_to(COMMON).as_posix(), value


def test_each_module_that_a_string_names_exists():
    found = set(named())
    missing = {pair for pair in found if importlib.util.find_spec(pair[1]) is None}
    assert not missing
    assert ("tools/nvidia.py", "common.sandbox.standalone") in found
    assert ("grading/fork_server.py", "common.sandbox.server") in found
