"""The order of the test files, and which share a worker; a plugin, which conftest.py names."""

from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

LONG = """
    test_wrong test_honest test_causes test_cheats test_killed_drivers
    test_solutions test_page_reading test_model test_house_masked test_house test_tune_failures
    test_tune test_base test_watch test_peers test_compilation test_crowd test_figures
""".split()
"""The files that take longest, first of all: begun last, one would run while other workers wait."""
SHARED = {"test_page": "page", "test_page_reading": "page", "test_page_views": "page"}
"""Files that one worker takes, with a name for them: what they share takes longer than a test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the files that take longest begin first."""
    ranks = {name: rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(LONG)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Return a scheduler that gives a worker one file after the other, in their order."""
    return Files(config, log)


class Files(LoadScopeScheduling):
    """The tests of a file, or of files that share something, run in one worker."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return SHARED.get(Path(path).stem, path)
