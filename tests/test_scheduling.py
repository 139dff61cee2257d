"""The order of the test files, and those that one worker takes."""

from types import SimpleNamespace

import pytest

from common.paths import ROOT
from tests import scheduling


def item(path):
    return SimpleNamespace(path=ROOT / path)


def test_every_file_that_is_named_is_there():
    there = [path.stem for path in (ROOT / "tests").rglob("test_*.py")]
    assert {*scheduling.LONG, *scheduling.SHARED} <= {*there}


def test_what_takes_longest_begins_first_and_the_rest_keeps_its_order():
    short = [item("tests/test_stats.py"), item("tests/test_board.py")]
    last, first = (item(f"tests/{scheduling.LONG[place]}.py") for place in (-1, 0))
    items = [short[0], last, short[1], first]
    scheduling.pytest_collection_modifyitems(items)
    assert items == [first, last, *short]


@pytest.mark.parametrize(
    ("other", "same"), [("tests/test_page_views.py", True), ("tests/test_pages.py", False)]
)
def test_files_that_share_a_fixture_have_one_worker(other, same):
    scopes = {
        scheduling.Files._split_scope(None, f"{path}::test_a[b]")
        for path in ("tests/test_page.py", other)
    }
    assert len(scopes) == (1 if same else 2)
