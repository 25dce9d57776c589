"""Files that survive a crash in the middle: atomic writes, stamps and locks."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import orjson

from forebay.errors import SetupError

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
