from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forebay import files
from forebay.errors import SettingError
from forebay.files import (
    check_nobody_else_writes,
    locked,
    locked_folder,
    private_folder,
    read_bytes,
    read_stamp,
    read_text,
    remove_unlocked,
    write_atomic,
    write_stamp,
)
from forebay.testing.waiting import wait_until


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folder_is_made_private(tmp_path: Path) -> None:
    made, open_to_all = tmp_path / "a" / "b", tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert private_folder(made) == made
    assert private_folder(made) == made
    assert mode(private_folder(open_to_all)) == mode(made) == mode(made.parent) == 0o700


def test_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="link: expected a folder, found a link or a file; remove it"):
        private_folder(tmp_path / "link")
    with pytest.raises(SettingError, match="file cannot be made a private folder"):
        private_folder(tmp_path / "file")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder away")
def test_folder_of_another_user_is_rejected(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(SettingError, match="belongs to user 12345, not to you"):
        private_folder(tmp_path)
    with pytest.raises(SettingError, match=r"belongs to user 12345, .* change the owner \(chown\)"):
        check_nobody_else_writes(tmp_path)


def test_state_that_others_may_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_nobody_else_writes(tmp_path / "missing")
    for allowed in (0o700, 0o755):
        tmp_path.chmod(allowed)
        check_nobody_else_writes(tmp_path)
    monkeypatch.setattr(files, "_is_own_group", lambda gid: False)
    for refused in (0o770, 0o707, 0o722):
        tmp_path.chmod(refused)
        with pytest.raises(SettingError, match=r"others may write to .* \(chmod go-w\)"):
            check_nobody_else_writes(tmp_path)


def test_own_group_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems let each user's group, which has only this user, write by default."""
    monkeypatch.setattr(files, "_is_own_group", lambda gid: True)
    tmp_path.chmod(0o775)
    check_nobody_else_writes(tmp_path / "missing")
    check_nobody_else_writes(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(SettingError, match="others may write"):
        check_nobody_else_writes(tmp_path)


@pytest.mark.parametrize("others", [[], [12345]])
def test_group_is_own_only_if_it_is_no_other_users(
    others: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group does not list those whose primary group it is."""
    gid = tmp_path.stat().st_gid

    def user(uid: int) -> Any:
        return SimpleNamespace(pw_name=f"u{uid}", pw_uid=uid, pw_gid=gid)

    own = SimpleNamespace(gr_name=f"u{os.getuid()}", gr_mem=[])
    monkeypatch.setattr(files, "grp", SimpleNamespace(getgrgid=lambda gid: own))
    everybody = [user(os.getuid()), *map(user, others)]
    monkeypatch.setattr(files, "pwd", SimpleNamespace(getpwuid=user, getpwall=lambda: everybody))
    tmp_path.chmod(0o770)
    with pytest.raises(SettingError, match="others may write") if others else nullcontext():
        check_nobody_else_writes(tmp_path)


def test_folder_above_that_others_may_write_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "shared" / "mine" / "state"
    inner.mkdir(parents=True)
    (tmp_path / "shared").chmod(0o777)
    for check in (private_folder, check_nobody_else_writes):
        with pytest.raises(SettingError, match=r"others may write to .*/shared and replace .*state"):
            check(inner)
    # As /tmp is: others may create files there, but not replace mine.
    (tmp_path / "shared").chmod(0o1777)
    check_nobody_else_writes(private_folder(inner))


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder away")
def test_folder_above_that_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "shared" / "theirs" / "mine"
    inner.mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    os.chown(inner.parent, 12345, -1)
    for check in (private_folder, check_nobody_else_writes):
        with pytest.raises(SettingError, match=r"theirs belongs to user 12345, who could replace .*mine"):
            check(inner)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder away")
def test_folders_of_a_trusted_owner_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "shared" / "theirs" / "mine"
    inner.mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    os.chown(inner.parent, 12345, -1)
    monkeypatch.setenv("FOREBAY_TRUST_OWNERS", "54321, 12345")
    for check in (private_folder, check_nobody_else_writes):
        check(inner)
    os.chown(inner, 12345, -1)
    check_nobody_else_writes(inner)
    # What is private is never another user's.
    with pytest.raises(SettingError, match="belongs to user 12345, not to you"):
        private_folder(inner)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a link away")
def test_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine" / "state").mkdir(parents=True)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to("../mine")
    check_nobody_else_writes(shared / "link" / "state")
    os.chown(shared / "link", 12345, -1, follow_symlinks=False)
    with pytest.raises(SettingError, match=r"link belongs to user 12345"):
        check_nobody_else_writes(shared / "link" / "state")
    (shared / "loop").symlink_to("loop")
    with pytest.raises(SettingError, match="too many links"):
        check_nobody_else_writes(shared / "loop" / "state")


def test_stamp_round_trip(tmp_path: Path) -> None:
    write_stamp(tmp_path / "deep" / "stamp.json", {"recipe": "1"})
    assert read_stamp(tmp_path / "deep" / "stamp.json") == {"recipe": "1"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b'{"a": "' + b"x" * 2**20 + b'"}'])
def test_invalid_stamp_reads_as_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "stamp.json").write_bytes(content)
    assert read_stamp(tmp_path / "stamp.json") == {}
    assert read_stamp(tmp_path / "missing.json") == {}


def test_failed_write_keeps_the_old_content_and_no_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomic(tmp_path / "file", b"old")

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_lock_waits_for_its_holder_and_for_the_child_that_was_given_it(tmp_path: Path) -> None:
    path, waited = tmp_path / "lock", []
    with locked(path) as descriptor:
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(descriptor,)
        )
    assert child.stdin is not None

    @contextmanager
    def let_the_child_end() -> Iterator[None]:
        waited.append(child.poll())
        child.stdin.close()  # type: ignore[union-attr]
        yield
        waited.append("done")

    with locked(path, let_the_child_end):
        assert waited == [None, "done"]
    child.wait()
    with locked(path, lambda: pytest.fail("nobody holds the lock")):
        pass


HOLDER = """
import subprocess, sys
from pathlib import Path
from forebay.files import locked_folder

folder, lock = locked_folder(Path(sys.argv[1]), "tmp-")
command = [sys.executable, "-c", "input()"]
if sys.argv[2] == "child":
    subprocess.Popen(command, pass_fds=(lock.fileno(),))
print(folder, flush=True)
input()
"""


@pytest.mark.parametrize("heir", ["nobody", "child"])
def test_a_folder_is_left_alone_while_its_lock_is_held(tmp_path: Path, heir: str) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), heir]
    # The child reads from the same pipe, which ends when we close our end.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        (tmp_path / "other").mkdir()
        assert mode(folder) == 0o700
        remove_unlocked(tmp_path, "tmp-")
        assert folder.is_dir()
        if heir == "child":
            holder.kill()
            holder.wait()
            remove_unlocked(tmp_path, "tmp-")
            assert folder.is_dir()

    def removed() -> bool:
        remove_unlocked(tmp_path, "tmp-")
        return not folder.exists()

    wait_until(removed)
    assert (tmp_path / "other").is_dir()


def test_a_folder_that_is_removed_as_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = fcntl.flock, list[Path]()

    def removes_the_first(file: Any, how: int) -> None:
        if not removed:
            removed.extend(tmp_path.glob("tmp-*"))
            shutil.rmtree(removed[0])
        lock(file, how)

    monkeypatch.setattr(files.fcntl, "flock", removes_the_first)
    folder, held = locked_folder(tmp_path, "tmp-")
    with held:
        assert folder.is_dir()
        assert [folder] != removed


def test_a_folder_without_locks_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(files.fcntl, "flock", refused)
    folder, held = locked_folder(tmp_path, "tmp-")
    with held:
        remove_unlocked(tmp_path, "tmp-")
    assert folder.is_dir()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="none: cannot create a folder there: No such file"):
        locked_folder(tmp_path / "none", "tmp-")


@pytest.mark.parametrize("at", ["mkdtemp", "open"])
def test_full_disk_is_not_a_wrong_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((files.tempfile, "mkdtemp") if at == "mkdtemp" else (Path, "open")), refused)
    with pytest.raises(OSError, match="No space left"):
        locked_folder(tmp_path, "tmp-")


def test_a_file_is_read_whole_within_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert read_bytes(path, 6, "schema f") == b"\xef\xbb\xbfabc"
    assert read_text(path, 6, "schema f") == "abc"
    with pytest.raises(SettingError, match="schema f is larger than 5 bytes"):
        read_text(path, 5, "schema f")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="schema f cannot be read: No such file"):
        read_bytes(tmp_path / "f", 9, "schema f")
    (tmp_path / "f").write_bytes(b"ab\xff")
    with pytest.raises(SettingError, match="schema f is not UTF-8: wrong byte at position 2"):
        read_text(tmp_path / "f", 9, "schema f")
