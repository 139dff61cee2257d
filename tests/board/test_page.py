"""The page without a browser: its file, its parts, and the libraries that it carries."""

import base64
import hashlib
import json
import re
import zlib
from types import SimpleNamespace

import msgspec
import pytest

from common import disk_cache, paths
from common.board.devices import Device, sections
from common.board.page import charts, rendering, sources, views
from common.board.page import site as pages
from common.board.page.rendering import TEMPLATES
from common.board.page.views import Site
from common.board.ranking import rank
from common.board.table import About, speed
from common.records.runs import Results
from common.solutions import Solution
from tests.support.boards import RUN, row

PAGE = paths.COMMON / "board" / "page"
VENDORED = {  # the sha256 of each bundle as its package's release has it
    "uplot/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "sortable/sortable.min.js": "a887cf42ad5b69673364c529afe8500b31dfbe3e78c2e623bee6430fc69b990f",
    "diff/diff.min.js": "b51a9d2885f2c090dc97b981027395f7e7e6558a46c75ae3747db267913a89ab",
}
PARTS = re.compile(r'<script type="application/json" id="parts">(.*?)</script>', re.DOTALL)
POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="(.*?)"')
TAG = {"script-src": re.compile(r"<script>(.*?)</script>", re.DOTALL),
       "style-src": re.compile(r"<style>(.*?)</style>", re.DOTALL)}  # fmt: skip


@pytest.fixture
def alice(tmp_path):
    """A folder with a solution, two helpers of which one is used, and a README."""
    folder = tmp_path / "alice"
    folder.mkdir()
    (folder / "rope.py").write_text('"""A note."""\nimport math, tiles\nfrom os import path\n')
    (folder / "tiles.py").write_text("import triton\nfrom . import rope\n\n@triton.jit\n"
                                     "def kernel(x):\n    return x\n\ndone = 1\n")  # fmt: skip
    (folder / "unused.py").write_text("")
    return Solution(folder / "rope.py", "rope")


def drawn(tmp_path, results, *solutions):
    """The page's text, and its parts by name."""
    text = pages.write(Site.of([results], solutions), tmp_path / "site").read_text()
    return text, unpacked(PARTS.search(text)[1])


def unpacked(text):
    """The parts of a packed page, as a browser unpacks them."""
    return {
        name: zlib.decompress(base64.b64decode(part), rendering.RAW).decode()
        for name, part in json.loads(text).items()
    }


def of(tmp_path, rows, **fields):
    return Results(path=tmp_path / "a-gpu", runs=[RUN], rows=rows, **fields)


# --- the file -------------------------------------------------------------------------------------


def test_parts_come_back_as_they_were():
    parts = {"a": "x" * 1000, "</script>": "한국어", "b": ""}
    text = rendering.packed(parts)
    assert "<" not in text
    assert unpacked(text) == parts


def test_the_policy_names_each_script_and_style_and_allows_nothing_else(tmp_path):
    text, _ = drawn(tmp_path, of(tmp_path, [row()]))
    rules = dict(
        rule.split(" ", 1) for rule in POLICY.search(text)[1].replace("&#39;", "'").split("; ")
    )
    assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    assert rules.pop("img-src") == "data:"
    assert rules.keys() == TAG.keys()
    for name, tag in TAG.items():
        digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()
                   for each in tag.findall(text)]  # fmt: skip
        assert digests and rules[name].split() == [f"'sha256-{digest}'" for digest in digests]


def test_a_bundle_is_its_release_and_its_licence_stands_beside_it():
    """So is every file of a library."""
    found = {str(path.relative_to(PAGE / "vendor")): path for path in PAGE.glob("vendor/*/*")}
    licences = {f"{name}/LICENSE" for name in ("uplot", "sortable", "diff")}
    assert found.keys() == VENDORED.keys() | licences
    for name, digest in VENDORED.items():
        assert hashlib.sha256(found[name].read_bytes()).hexdigest() == digest, name
        assert name in " ".join((*pages.SCRIPTS, *pages.STYLES))
    for name in licences:
        assert re.search(r"MIT|Permission is hereby granted|Redistribution|public domain",
                         found[name].read_text()), name  # fmt: skip


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_a_template_trusts_no_text_and_holds_no_code(path):
    text = path.read_text()
    assert not re.search(r"\|\s*safe|autoescape|Markup", text)
    assert not re.search(r"\s(style|on[a-z]+)=", text), "the policy would refuse it"


# --- rankings -------------------------------------------------------------------------------------

MANY = [
    row("alice/rope", us=10.0),
    row("alice/rope", us=10.0, case="c2", direction="backward"),
    row("bob/rope", us=5.0),
    row("bob/rope", us=40.0, case="c2", direction="backward"),
    row("bob/rope", us=1.0, track="extended", case="c3"),
]
BOTH = {name: About("", "s1") for name in ("alice/rope", "bob/rope")}


def test_each_choice_of_direction_and_case_is_ranked_by_itself(tmp_path):
    results = of(tmp_path, MANY)
    (section,) = sections(results, BOTH)
    shown, core = views.Shown(Device(results, (section,))), section.tracks[0]
    found = {(ranking.direction, ranking.case): [entry.solution for entry in ranking.track.entries]
             for ranking in views.rankings(shown, section, core, BOTH)}  # fmt: skip
    alice, bob = "alice/rope", "bob/rope"
    assert found == {
        ("", ""): [alice, bob],
        ("", "c1"): [bob, alice],
        ("", "c2"): [alice, bob],
        ("forward", ""): [bob, alice],
        ("forward", "c1"): [bob, alice],
        ("backward", ""): [alice, bob],
        ("backward", "c2"): [alice, bob],
    }


def test_the_page_and_markdown_show_the_same_numbers(tmp_path):
    rows = [*MANY[:3], row("bob/rope", us=[38.0, 40.0, 43.0], case="c2", direction="backward")]
    folder = tmp_path / "bob"
    folder.mkdir()
    (folder / "rope.py").write_text("")
    _, parts = drawn(tmp_path, of(tmp_path, rows), Solution(folder / "rope.py", "rope"))
    (entry,) = (each for each in rank(rows)[0].entries if each.solution == "bob/rope")
    value, half = speed(entry).split(" ± ")
    assert float(half) > 0
    text = re.sub(r"<[^>]*>", "", parts["board/a-gpu/rope/core"])
    assert f"{value} ± {half}" in text


# --- sources --------------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True])
def test_a_solutions_files_are_its_own_and_the_helpers_that_it_imports(alice, tmp_path, deep):
    names = ["rope.py", "tiles.py"]
    if deep:
        inner = alice.path.parent / "parts"
        inner.mkdir()
        alice.path.write_text("from parts import halves\nimport parts.signs\n")
        (inner / "halves.py").write_text("from .inner import x\nimport tiles\n")
        (inner / "signs.py").write_text("")
        (inner / "inner.py").write_text("import os, rope")
        names += ["parts/halves.py", "parts/signs.py", "parts/inner.py"]
    assert sorted(sources.files(alice)) == sorted(names)
    _, parts = drawn(tmp_path, of(tmp_path, [row()]), alice)
    assert {f"file/alice/{name}" for name in names} == {
        name for name in parts if name.startswith("file/")
    }
    assert all(f'data-file="file/alice/{name}"' in parts["solution/alice/rope"] for name in names)


def test_the_page_begins_with_two_contributors_to_compare(tmp_path):
    everyone = []
    for handle in ("alice", "bob", "carol"):
        (tmp_path / handle).mkdir()
        (tmp_path / handle / "rope.py").write_text("")
        everyone.append(Solution(tmp_path / handle / "rope.py", "rope"))
    rows = [row("alice/rope", us=1.0, peer=True), row("bob/rope", us=9.0), row("carol/rope")]
    text, _ = drawn(tmp_path, of(tmp_path, rows), *everyone)
    assert 'data-one="bob/rope" data-other="carol/rope"' in text


def test_the_lines_of_kernels_are_marked(alice):
    text = sources.lines(alice.path.with_name("tiles.py"))
    lines = re.findall(r'<span class="line( kernel)?">(.*)', text)
    assert [bool(kernel) for kernel, _ in lines] == [False] * 3 + [True] * 3 + [False] * 2


def test_lines_are_highlighted_again_where_something_behind_them_changed(alice, monkeypatch):
    one, other = alice.path, alice.path.with_name("tiles.py")
    monkeypatch.setattr(disk_cache, "CACHE", one.parent / "cache")
    expected, done, lines = sources.lines(other), [], sources.lines
    monkeypatch.setattr(sources, "lines", lambda path: (done.append(path), lines(path))[1])
    for change, due in (
        (lambda: None, [one, other]),
        (lambda: None, []),
        (lambda: one.write_text("x = 2\n"), [one]),
        (lambda: monkeypatch.setattr(disk_cache, "foundation", lambda: "newer"), [one, other]),
    ):
        change()
        assert sources.all_lines([one, other])[1] == expected
        assert done == due
        done.clear()


@pytest.mark.parametrize("text", ["def broken(:\n", "\0", "x = '" + "(" * 300])
def test_a_file_that_does_not_parse_is_shown_as_it_is(alice, text):
    alice.path.write_text(text)
    assert list(sources.files(alice)) == ["rope.py"]
    assert sources.lines(alice.path).count('class="line') == 1


def test_a_readme_holds_no_markup_and_no_picture_of_its_own(alice):
    folder = alice.path.parent
    (folder / "README.md").write_text(
        "# Alice\n<b onclick=x>bold</b> ![p](http://x/p.png) [own](rope.py) [out](https://x.org)"
        " [gone](../bob) [bad](javascript:x)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    text = sources.readme(folder, ["alice/rope"])
    assert "<h3>Alice</h3>" in text and "<table>" in text
    assert "&lt;b onclick=x&gt;" in text
    assert "<img" not in text and "<b " not in text
    assert '<a href="#view=solution&amp;name=alice%2Frope">own</a>' in text
    assert '<a href="https://x.org" rel="noopener noreferrer">out</a>' in text
    assert "<a>gone</a>" in text and 'href="javascript' not in text


# --- history --------------------------------------------------------------------------------------


def test_history_has_the_runs_that_timed_the_whole_track(tmp_path):
    def both(run, us):
        return [row(us=us, run=run), row(us=us, run=run, case="c2")]

    results = of(
        tmp_path,
        [row(us=1.0, run="r2"), *both("r1", 20.0), *both("r3", 10.0)],
        names={f"r{number}": f"2026112{number}T080000Z-r{number}.jsonl" for number in range(4)},
    )
    results.names["r9"] = "r9.jsonl"
    results.rows.extend(both("r9", 5.0))  # its file's name has no time, and so no place
    (track,) = rank(results.latest())
    (points,) = views.histories(results, track).values()
    assert [(point.run, point.score.value) for point in points] == [
        ("r1", pytest.approx(1.0)), ("r3", pytest.approx(2.0)),
    ]  # fmt: skip
    assert [point.when.day for point in points] == [21, 23]
    assert [point.sources for point in points] == ["s1", "s1"]


# --- without times --------------------------------------------------------------------------------


def test_a_device_without_times_shows_verdicts_and_says_so(tmp_path, alice):
    cpu = msgspec.structs.replace(RUN, device="cpu", device_name="A CPU")
    rows = [row(gpu={}, host={}, twin=True, case=case) for case in ("c1", "c2")]
    results = Results(path=tmp_path / "cpu", runs=[cpu], rows=rows)
    _, parts = drawn(tmp_path, results, alice)
    text = parts["board/cpu/rope/core"]
    assert "Nothing was timed" in text and "× eager</button>" not in text
    assert "2/2" in text
    assert "PASSED" in parts["solution/alice/rope"]


def test_records_of_nobody_draw_a_page_that_says_so(tmp_path):
    text, parts = drawn(tmp_path, of(tmp_path, [row()]))
    assert 'data-first="missing"' in text and "missing" in parts


def test_a_solution_has_one_hue_in_all_charts():
    entries = [("a/rope", False), ("b/rope", False), ("eager/rope", True), ("a/new", False)]
    site = Site(
        [], [SimpleNamespace(name=name, op=name[-4:], peer=peer) for name, peer in entries], {}
    )
    assert site.hues == {"a/rope": 0, "b/rope": 1, "eager/rope": 0, "a/new": 0}
    series = [{"name": "b/rope"}, {"name": "copy of the same bytes"}]
    drawn = json.loads(charts.Chart("", "", "", ["c1"], series).json(site.hues))
    assert [each["hue"] for each in drawn["series"]] == [1, None]
