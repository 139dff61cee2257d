"""A folder that cannot be a contributor's is left out, with a line, and stops no other."""

import errno
import os

import pytest

from common import folders as checked
from common.folders import left_out
from common.paths import CONTRIBUTORS
from common.solutions import discover

ROPE = "def rope(): ...\n"


@pytest.fixture
def folders(tmp_path):
    """Make the folder of all folders, with these in it and bob's."""

    def folders(*names):
        for name in (*names, "bob"):
            (tmp_path / "all" / name).mkdir(parents=True)
            (tmp_path / "all" / name / "rope.py").write_text(ROPE)
        return tmp_path / "all"

    return folders


def told(root, name):
    """Why the one folder is left out; the others are found."""
    (found,) = left_out(root).items()
    handles = {path.name for path in root.iterdir()} - {name}
    assert found[0] == name
    assert {solution.handle for solution in discover(root)} == handles >= {"bob"}
    return found[1]


def digests(root):
    """Of each solution with its configurations, and of its sources alone."""
    return {each: (each.digest, each.source_digest) for each in discover(root)}


@pytest.mark.parametrize(
    "name", ["alice", "a-1_b", "7up", "김철수", "Ζωή", "हिन्दी", "é", "e\u0301"]
)
def test_handles_are_written_as_people_write_their_names(folders, name):
    root = folders(name)
    assert left_out(root) == {}
    assert {solution.handle for solution in discover(root)} == {name, "bob"}


@pytest.mark.parametrize(
    "name",
    ["al ice", "al,ice", "a.b", "-x", "--only", "a\nb", "a\u202eb", "$(x)", "\u0301", "\udcff"],
)
def test_another_name_is_to_be_changed(folders, name):
    assert told(folders(name), name) == f"rename the folder, {checked.NO_HANDLE}"


def test_a_peer_keeps_its_name(folders, monkeypatch):
    root = folders("eager")
    assert left_out(root) == {}
    monkeypatch.setattr(checked, "CONTRIBUTORS", root)
    assert left_out(root) == {"eager": "rename the folder, a peer has its name"}


@pytest.mark.parametrize(
    ("name", "target", "says"),
    [
        ("alice", "/etc", "alice is a link out of all/"),
        ("alice", "nowhere", "alice cannot be read: No such file or directory"),
        ("alice/kernels.py", "/etc/hostname", "alice/kernels.py is a link out of all/"),
        ("alice/deep/x", "../../..", "alice/deep/x is a link out of all/"),
    ],
)
def test_a_link_leads_to_a_contributors_file(folders, name, target, says):
    root = folders()
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).symlink_to(target)
    assert told(root, "alice").endswith(says)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("helper.py", "../bob/rope.py"),
        # what editors leave: locks of Emacs, for a file that is not saved yet, and copies
        (".#rope.py", "alice@host.1:2"),
        (".#helper.py", "alice@host.1:2"),
        (".ipynb_checkpoints/rope-check.py", "../../bob/rope.py"),
        # the digest once ended the leaderboard: No such file, Too many levels, Is a directory
        ("kernels.py", "nowhere"),
        ("kernels.py", "kernels.py"),
        ("kernels.py", None),
    ],
)
def test_a_link_within_and_what_is_no_file_are_taken(folders, name, target):
    root = folders("alice")
    path, before = root / "alice" / name, digests(root)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target) if target else path.mkdir()
    assert left_out(root) == {}
    assert (digests(root) == before) == (name != "helper.py")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_folder_that_cannot_be_read_is_named(folders, monkeypatch, number):
    root, names = folders("alice"), os.listdir

    def listdir(path="."):
        if os.fspath(path) == str(root / "alice"):
            raise OSError(number, os.strerror(number), path)
        return names(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert told(root, "alice") == f"{root / 'alice'} cannot be read: {os.strerror(number)}"


def test_no_folder_of_the_repository_is_left_out():
    assert left_out(CONTRIBUTORS) == {}


def test_of_ops_whose_names_begin_alike_the_longest_wins(tmp_path):
    (tmp_path / "alice").mkdir()
    for file in ("rope_fast", "rope_qk_fast", "rope_qkv"):
        op = "rope_qk" if "_qk_" in file else "rope"
        (tmp_path / "alice" / f"{file}.py").write_text(f"def {op}():\n    pass\n")
    found = {each.path.stem: each.op for each in discover(tmp_path)}
    assert found == {"rope_fast": "rope", "rope_qk_fast": "rope_qk", "rope_qkv": "rope"}


def test_a_file_that_prints_is_told_of(tmp_path):
    calls = "x = 1; print(x)", "tl.device_print('x', x)", "# print(x)", "blueprint(x)"
    for name, call in zip("abcd", calls, strict=True):
        (tmp_path / f"{name}.py").write_text(f"def f(x):\n    {call}\n")
    assert sorted(checked.printing(tmp_path)) == ["a.py", "b.py"]
