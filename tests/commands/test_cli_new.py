"""`study new`: what it writes passes, and nothing is overwritten."""

import shutil

import pytest

from tests.support.study import one_line


@pytest.mark.slow
def test_what_new_writes_passes_check(study, repository):
    folder = repository / "contributors" / "newcomer"
    for op in ("rotate_half", "rope"):
        ran = study("new", "newcomer", op, hidden="torch triton numpy rich")
        assert ran.code == 0, ran.err
    assert {f.name for f in folder.iterdir()} == {"README.md", "rope.py", "rotate_half.py"}
    assert "newcomer" in (folder / "README.md").read_text()
    ran = study("check", "newcomer", timeout=300)
    shutil.rmtree(folder)
    assert ran.code == 0, ran.out + ran.err
    assert "newcomer/rope, smoke: " in ran.out
    assert "newcomer/rotate_half, smoke: " in ran.out
    assert "PASSED" in ran.out
    assert ran.out.endswith("Next: nox -s bench leaderboard -- --only newcomer\n")


def test_new_overwrites_nothing(study, repository):
    study("new", "careful", "rope")
    folder = repository / "contributors" / "careful"
    for name in ("rope.py", "README.md"):
        (folder / name).write_text("mine")
    assert "careful/rope.py" in one_line(study("new", "careful", "rope"))
    ran = study("new", "careful", "rotate_half")
    assert ran.out.endswith("rotate_half.py; next: nox -s check -- careful --op rotate_half\n")
    assert (folder / "rope.py").read_text() == (folder / "README.md").read_text() == "mine"
    assert (folder / "rotate_half.py").exists()
    shutil.rmtree(folder)


def test_new_tuned_brings_the_helper_that_reads_configurations(study, repository):
    folder = repository / "contributors" / "tuner"
    ran = study("new", "tuner", "rotate_half", "--tuned", hidden="torch triton numpy rich")
    assert ran.code == 0, ran.err
    assert "tuner/rotate_half.py and contributors/tuner/configs.py" in ran.out
    assert {f.name for f in folder.iterdir()} == {"README.md", "rotate_half.py", "configs.py"}
    template = repository / "contributors" / "_template" / "configs.py"
    assert (folder / "configs.py").read_bytes() == template.read_bytes()
    (folder / "configs.py").write_text("mine")
    assert "tuner/configs.py" in one_line(study("new", "tuner", "rotate_half", "--tuned"))
    assert study("new", "tuner", "rope", "--tuned").code == 0
    assert (folder / "configs.py").read_text() == "mine"
    shutil.rmtree(folder)


@pytest.fixture
def no_template(repository):
    """An op for which there is none."""
    template = repository / "contributors" / "_template" / "rope.py"
    text = template.read_text()
    template.unlink()
    yield "rope"
    template.write_text(text)


def test_new_tuned_adds_the_helper_alone_to_what_is_there(study, repository, by_hand, no_template):
    by_hand("alice", "mine")
    folder = repository / "contributors" / "alice"
    shutil.copy(folder / "rotate_half.py", folder / f"{no_template}.py")
    for op in ("rotate_half", no_template):
        (folder / "configs.py").unlink(missing_ok=True)
        ran = study("new", "alice", op, "--tuned")
        assert ran.code == 0, ran.err
        assert ran.out.startswith("wrote contributors/alice/configs.py; next: ")
        assert (folder / f"{op}.py").read_text() == "mine"
        assert "class Tuned" in (folder / "configs.py").read_text()
    assert "no template" in one_line(study("new", "bob", no_template, "--tuned"))
    assert not (repository / "contributors" / "bob").exists()


def test_new_refuses_the_name_of_a_peer(study, repository):
    """Two solutions of one name would share their rows."""
    ran = study("new", "eager", "rope")
    shutil.rmtree(repository / "contributors" / "eager", ignore_errors=True)
    assert "eager" in one_line(ran)
