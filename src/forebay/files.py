"""Crash-safe files (atomic writes, stamps, locks), bounded reads, and private folders."""

from __future__ import annotations

import errno
import fcntl
import grp
import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

import orjson

from forebay.errors import SettingError, SetupError
from forebay.settings import trusted_owners


def private_folder(path: Path) -> Path:
    """Create `path` and missing parents with mode 0700, or make an existing `path` private.

    Raises `SettingError` if it is a link, not a folder, or another user owns it or could replace it.
    """
    try:
        for missing in reversed([parent for parent in path.parents if not parent.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        check_ancestors(path, "is private")
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise SettingError(f"{path}: expected a folder, found a link or a file; remove it")
        if found.st_uid != os.getuid():
            raise SettingError(f"{path} belongs to user {found.st_uid}, not to you; choose another place")
        if stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise SettingError(f"{path} cannot be made a private folder: {error}") from None
    return path


RUNS_CODE = "can run code as you"
OTHERS = stat.S_IWGRP | stat.S_IWOTH
MAX_LINKS = 40


def check_nobody_else_writes(path: Path, risk: str = RUNS_CODE, *, by: int = OTHERS) -> None:
    """Raise `SettingError` if others may write to `path`, replace it or a folder above it, or own it, except
    root and trusted owners.

    `risk`: what a malicious content could do. `by`: mode bits that count as writable by others; a group that
    has only this user does not count. A missing `path` is fine.
    """
    try:
        check_ancestors(path, risk, by=by)
        found = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}") from None
    if found.st_uid not in {os.getuid(), 0, *trusted_owners()}:
        raise SettingError(
            f"{path} belongs to user {found.st_uid}, and its content {risk}: change the owner (chown) if "
            f"you trust it, or name the user in FOREBAY_TRUST_OWNERS"
        )
    if _others_write(found, by):
        raise SettingError(
            f"others may write to {path}, and its content {risk}: remove their permission (chmod go-w) if "
            f"you trust it"
        )


def check_ancestors(path: Path, risk: str, *, by: int = OTHERS) -> None:
    """Raise `SettingError` if another user could replace `path`, or a folder or link on the way to it.

    Sticky folders, such as `/tmp`, are fine if what `path` needs of them belongs to this user, root or a
    trusted owner. Root trusts the owners of other folders.
    """
    me, trusted, left = os.getuid(), trusted_owners(), list(reversed(path.absolute().parts))
    current, links = Path(left.pop()), 0
    while left:
        child = current / left.pop()
        folder = current.stat()
        shared = _others_write(folder, by)
        if shared and not folder.st_mode & stat.S_ISVTX:
            raise SettingError(
                f"others may write to {current} and replace {path}, whose content {risk}: remove their "
                f"permission (chmod go-w {current}), or choose another place"
            )
        try:
            found = child.lstat()
        except FileNotFoundError:
            return
        if found.st_uid not in {me, 0, *trusted} and (shared or me != 0):
            raise SettingError(
                f"{child} belongs to user {found.st_uid}, who could replace {path}, whose content {risk}: "
                f"choose another place, or name the user in FOREBAY_TRUST_OWNERS"
            )
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise SettingError(f"{path}: too many links on the way")
            target = current / child.readlink()
            left += reversed(target.parts)
            current = Path(left.pop())
        else:
            current = child


def _others_write(found: os.stat_result, by: int) -> bool:
    if stat.S_IMODE(found.st_mode) & by & stat.S_IWGRP and _is_own_group(found.st_gid):
        by &= ~stat.S_IWGRP
    return bool(stat.S_IMODE(found.st_mode) & by)


def _is_own_group(gid: int) -> bool:
    try:
        me, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    if (gid, group.gr_name) != (me.pw_gid, me.pw_name) or not set(group.gr_mem) <= {me.pw_name}:
        return False
    # A group does not list those whose primary group it is.
    return all(user.pw_uid == me.pw_uid for user in pwd.getpwall() if user.pw_gid == gid)


MAX_STATE_BYTES = 1 << 20


def write_atomic(path: Path, content: bytes) -> None:
    """After a crash, or for a concurrent reader, the content is either old or new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_stamp(path: Path, content: Mapping[str, object]) -> None:
    """Write `content` as JSON. Do it last: the stamp confirms earlier writes."""
    write_atomic(path, orjson.dumps(dict(content), option=orjson.OPT_INDENT_2))


def read_stamp(path: Path) -> dict[str, object]:
    """The stamp's content; empty if it is missing, unreadable, too large or not a JSON object."""
    try:
        if path.stat().st_size > MAX_STATE_BYTES:
            return {}
        content = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def read_bytes(path: Path, most_bytes: int, called: str) -> bytes:
    """Blocks. Raises `SettingError`, which calls the file `called`, if it cannot be read or is larger than
    `most_bytes`."""
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise SettingError(f"{called} cannot be read: {error.strerror}") from None
    if len(data) > most_bytes:
        raise SettingError(f"{called} is larger than {most_bytes} bytes")
    return data


def read_text(path: Path, most_bytes: int, called: str) -> str:
    """Like `read_bytes`, as text without a byte order mark. Also raises if it is not UTF-8."""
    try:
        return read_bytes(path, most_bytes, called).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(f"{called} is not UTF-8: wrong byte at position {error.start}") from None


def check_sha256(path: Path, wanted: str) -> None:
    """Raise `SetupError` if the file is missing or has another SHA-256."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                found.update(chunk)
    except OSError as error:
        raise SetupError(f"{path.name} cannot be read: {error}") from None
    if found.hexdigest() != wanted:
        raise SetupError(
            f"{path.name} is not the expected file: expected the SHA-256 {wanted}, found "
            f"{found.hexdigest()}; nothing was installed. Check where pip gets its packages from"
        )


def try_lock(path: Path) -> int | None:
    """Lock `path` between processes until the returned descriptor is closed or this process ends.

    None if it is already locked. Raises `OSError` if the file cannot be created.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_at(path: Path, descriptor: int) -> bool:
    """Whether `path` is still the open file or folder."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # A network file system may fail for a moment.


def is_locked(path: Path) -> bool:
    """Whether `path` is locked by another descriptor. Creates no file.

    A `try_lock` at the same moment may return None. Raises `OSError`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


LOCK = ".lock"
TRIES = 10
FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
"""Errors of a full disk, which may have room again later."""


def locked_folder(parent: Path, prefix: str) -> tuple[Path, IO[bytes]]:
    """Create a private folder with a new name, which `remove_unlocked` ignores; returns it with its lock.

    It stays locked until the lock is closed here and in each process that inherited it. Raises `SettingError`
    if it cannot be created, `OSError` if its lock cannot be created or the disk is full.
    """
    for _ in range(TRIES):
        try:
            path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        except OSError as error:
            if error.errno in FULL:
                raise
            raise SettingError(f"{parent}: cannot create a folder there: {error.strerror}") from None
        with suppress(FileNotFoundError), ExitStack() as opened:
            lock = opened.enter_context((path / LOCK).open("wb"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:
                opened.pop_all()
                return path, lock
            # Another process may have removed it just before it was locked.
            if os.fstat(lock.fileno()).st_nlink:
                opened.pop_all()
                return path, lock
    raise SettingError(f"{parent}: cannot lock a folder there: another process removes each at once")


def remove_unlocked(parent: Path, prefix: str) -> None:
    for path in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            descriptor = try_lock(path / LOCK)
            if descriptor is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)


@contextmanager
def locked(path: Path, waiting: Callable[[], AbstractContextManager[object]] = nullcontext) -> Iterator[int]:
    """Hold a lock on `path` between processes; blocks, inside `waiting`, while another process holds it.

    A child that gets the yielded descriptor (`pass_fds`) keeps the lock until it ends: the next command must
    not disturb what a killed one left running.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with waiting():
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
