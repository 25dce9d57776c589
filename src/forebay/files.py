"""Files that survive a crash in the middle (atomic writes, stamps, locks), files that are read whole with a
bound, and folders that only their owner can read and write.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

import orjson

from forebay.errors import SettingError, SetupError


def private_folder(path: Path) -> Path:
    """Make `path` and missing parents folders of mode 0700, or see to it that `path` is one; returns `path`.

    Raises `SettingError` where it is a link, no folder, or belongs to somebody else: whoever made it could
    read what is put there, or have it written to another place.
    """
    try:
        for missing in reversed([parent for parent in path.parents if not parent.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
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


def check_nobody_else_writes(
    path: Path, risk: str = RUNS_CODE, *, by: int = stat.S_IWGRP | stat.S_IWOTH
) -> None:
    """Raise `SettingError` where others than its owner may write to the folder or file `path`, or its owner
    is neither who asks nor root.

    `risk`: what may come of what is stored there. `by`: the bits of its mode that let others write. One that
    is missing is fine.
    """
    with suppress(FileNotFoundError):
        found = path.stat()
        if found.st_uid not in {os.getuid(), 0}:
            raise SettingError(
                f"{path} belongs to user {found.st_uid}, and what is stored there {risk}: make "
                f"it yours (chown), if you trust what it holds"
            )
        if stat.S_IMODE(found.st_mode) & by:
            raise SettingError(
                f"others may write to {path}, and what is stored there {risk}: keep them out "
                f"(chmod go-w), if you trust what it holds"
            )


MAX_STATE_BYTES = 1 << 20


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content`: a reader, or a crash, sees the old or the new content, never a part."""
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
    """Write `content` as JSON; the last act of what it vouches for."""
    write_atomic(path, orjson.dumps(dict(content), option=orjson.OPT_INDENT_2))


def read_stamp(path: Path) -> dict[str, object]:
    """The stamp's content; empty where it is missing, unreadable, too large or no JSON object."""
    try:
        if path.stat().st_size > MAX_STATE_BYTES:
            return {}
        content = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def read_bytes(path: Path, most_bytes: int, called: str) -> bytes:
    """What the file at `path` holds; blocks.

    Raises `SettingError`, which names the file as `called`, where it cannot be read or is larger.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise SettingError(f"{called} cannot be read: {error.strerror}") from None
    if len(data) > most_bytes:
        raise SettingError(f"{called} is larger than {most_bytes} bytes")
    return data


def read_text(path: Path, most_bytes: int, called: str) -> str:
    """The same as text, without a byte order mark; raises also where it is not UTF-8."""
    try:
        return read_bytes(path, most_bytes, called).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(f"{called} is not UTF-8: wrong byte at position {error.start}") from None


def check_sha256(path: Path, wanted: str) -> None:
    """Raise `SetupError` where the file at `path` is missing or is not the one with this SHA-256."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                found.update(chunk)
    except OSError as error:
        raise SetupError(f"{path.name} cannot be read: {error}") from None
    if found.hexdigest() != wanted:
        raise SetupError(
            f"{path.name} is not the file that this Forebay knows: expected the SHA-256 {wanted}, found "
            f"{found.hexdigest()}; nothing was installed. Look at where pip gets its packages from"
        )


def try_lock(path: Path) -> int | None:
    """A descriptor that locks `path` between processes until it is closed or this process ends, however it
    ends; None where another has the lock. Raises `OSError` where the file cannot be made."""
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


LOCK = ".lock"
"""The file that locks a folder."""
TRIES = 10


def locked_folder(parent: Path, prefix: str) -> tuple[Path, IO[bytes]]:
    """Make a private folder in `parent`, with a new name that begins with `prefix`, which `remove_unlocked`
    leaves alone; returns it with its lock.

    It is locked until the lock is closed, here and in each process that inherited it; the end of a process
    closes it. If the file system has no locks, the folder stays. Raises `SettingError` if it cannot be made.
    """
    for _ in range(TRIES):
        try:
            path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        except OSError as error:
            raise SettingError(f"{parent}: no folder can be made there: {error.strerror}") from None
        with suppress(OSError), ExitStack() as opened:
            lock = opened.enter_context((path / LOCK).open("wb"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:
                opened.pop_all()
                return path, lock
            # Whoever found it unlocked a moment ago may have removed it.
            if os.fstat(lock.fileno()).st_nlink:
                opened.pop_all()
                return path, lock
    raise SettingError(f"{parent}: no folder can be locked there: another process removes each at once")


def remove_unlocked(parent: Path, prefix: str) -> None:
    """Remove the folders in `parent` whose names begin with `prefix` and that no process has locked."""
    for path in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            descriptor = try_lock(path / LOCK)
            if descriptor is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)


@contextmanager
def locked(path: Path, waiting: Callable[[], AbstractContextManager[object]] = nullcontext) -> Iterator[int]:
    """Hold a lock on `path` between processes; blocks, inside `waiting`, while another has it.

    Yields the lock's descriptor. A child that is given it (`pass_fds`) keeps the lock until it ends too,
    so that what a killed command left running is not disturbed by the next one.
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
