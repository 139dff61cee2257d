"""The figures of docs/ are those of the records that the pages name."""

import re

import pytest

from common.paths import RESULTS, ROOT
from tests.generators import agreement, figures


@pytest.mark.slow
def test_pages_name_runs_that_are_kept_and_have_their_figures(monkeypatch):
    pages, held = "".join(page.read_text() for page in ROOT.glob("docs/*.md")), []
    kept = {path.stem.rpartition("-")[2] for path in RESULTS.glob("*/*.jsonl")}
    assert set(re.findall(r"\b[0-9a-f]{12}\b", pages)) <= kept
    for module, is_in in ((each, each.in_the_docs) for each in (agreement, figures)):
        compare = lambda name, text, _, page: held.append(is_in(name, text, False, page))  # noqa
        monkeypatch.setattr(module, "in_the_docs", compare)
        module.main(*re.search(rf"{module.__name__} (nvidia-[^`]*)`", pages)[1].split())
    assert held == [True] * 13  # one of timing.md, seven of rope.md, five of masked.md
