"""`study sanitize`: the tools and cases that the command line chooses."""

from __future__ import annotations

import pytest
import torch

from common import cli
from common.commands import options, sanitize
from common.tools import sanitizers


@pytest.mark.parametrize(
    ("given", "tools"),
    [
        ([], list(sanitizers.TOOLS)),
        (["--tool", "racecheck"], ["racecheck"]),
        (["--tool", sanitizers.SYMBOLIC], [sanitizers.SYMBOLIC]),
    ],
)
def test_the_command_line_chooses_the_tools(monkeypatch, given, tools):
    asked = []
    monkeypatch.setattr(options, "device", lambda options: "cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))
    monkeypatch.setattr(sanitize, "sanitize", lambda *args: asked.append(args) or not given)
    with pytest.raises(SystemExit) as ended:
        cli.main(["sanitize", "--only", "house", "--op", "rope", *given])
    assert ended.value.code == bool(given)
    ((chosen, cases_of, asked_tools, _),) = asked
    assert [solution.name for solution in chosen] == ["house/rope"]
    assert list(asked_tools) == tools
    ((_, cases),) = cases_of
    assert (len(cases) == sanitize.SAMPLE) == (tools != [sanitizers.SYMBOLIC])
