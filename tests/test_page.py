"""The page without a browser: its file, its parts, and the libraries that it carries."""

import base64
import hashlib
import json
import re

import msgspec
import pytest

from common import paths
from common.board.page import charts, history, packing, rankings, sources
from common.board.page import site as pages
from common.board.page.drawing import TEMPLATES
from common.board.page.views import Site
from common.board.sections import sections
from common.board.table import About, speed
from common.records.fields import SCHEMA, Selection, Summary
from common.records.lines import Past, Run
from common.records.runs import Results
from common.solutions import Solution, everyone
from tests.test_ranking import ABOUT, RUN, TIMED, row

VENDORED = {
    "uplot/uPlot.iife.min.js": "1.6.32, MIT, 9d9f",
    "uplot/uPlot.min.css": "1.6.32, MIT",
    "sortable/sortable.min.js": "4.1.7, Unlicense",
    "diff/diff.min.js": "9.0.0, BSD-3-Clause",
}
PARTS = re.compile(r'<script type="application/json" id="parts">(.*?)</script>', re.DOTALL)


def written(tmp_path, results, solutions=()):
    site = Site.of([results], solutions)
    text = pages.write(site, tmp_path / "site").read_text()
    return text, packing.unpacked(PARTS.search(text)[1])
