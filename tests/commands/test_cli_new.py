"""`study new`: what it writes passes, and nothing is overwritten."""

import shutil

import pytest

from tests.support.study import one_line

HIDDEN = "torch triton numpy rich"


@pytest.fixture
def newcomer(repository):
    """The folder that the tests fill."""
    folder = repository / "contributors" / "newcomer"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_what_new_writes_passes_check(study, newcomer):
    ran = study("new", "newcomer", "rotate_half", hidden=HIDDEN)
    assert ran.code == 0, ran.err
    assert {f.name for f in newcomer.iterdir()} == {"README.md", "rotate_half.py"}
    assert "newcomer" in (newcomer / "README.md").read_text()
    ran = study("check", "newcomer")
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.endswith("Next: nox -s bench leaderboard -- --only newcomer\n")


def test_new_overwrites_nothing(study, newcomer):
    study("new", "newcomer", "rope")
    for name in ("rope.py", "README.md"):
        (newcomer / name).write_text("mine")
    assert "newcomer/rope.py" in one_line(study("new", "newcomer", "rope"))
    ran = study("new", "newcomer", "rotate_half", hidden=HIDDEN)
    assert ran.out == (
        "wrote contributors/newcomer/rotate_half.py;"
        " next: nox -s check -- newcomer --op rotate_half\n"
    )
    assert (newcomer / "rope.py").read_text() == (newcomer / "README.md").read_text() == "mine"


def test_an_op_without_a_template_whose_reference_needs_other_code_is_refused(study, repository):
    template = repository / "contributors" / "_template" / "rope.py"
    text = template.read_text()
    template.unlink()
    refused = study("new", "bob", "rope")
    template.write_text(text)
    assert "no template" in one_line(refused)
    assert not (repository / "contributors" / "bob").exists()


def test_new_refuses_the_name_of_a_peer(study, repository):
    """Two solutions of one name would share their rows."""
    ran = study("new", "eager", "rope")
    shutil.rmtree(repository / "contributors" / "eager", ignore_errors=True)
    assert "eager" in one_line(ran)
