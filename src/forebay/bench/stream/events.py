"""The events of a load: their fields, and when they are due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import orjson

from forebay.bench.stream.options import EventLoad
from forebay.connectors.formats import MAX_RECORD_BYTES
from forebay.connectors.generator.source import post, topic_of
from forebay.errors import SettingError

ID, DUE_US = "forebay_event", "forebay_due_us"
"""Fields added to each event: its id, and its event time in microseconds since 1970."""
MAX_BYTES = 1 << 30


def read_data(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSON-lines file of at most 1 GiB. Raises `SettingError` for a missing file or a
    wrong line."""
    found = []
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SettingError(f"--data: {path} has more than {MAX_BYTES >> 20} MiB; split it")
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found.append(_object(path, number, line))
    except OSError as error:
        raise SettingError(f"--data: {path} cannot be read: {error.strerror}") from None
    if not found:
        raise SettingError(f"--data: {path} holds no event")
    return found


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    if len(line) > MAX_RECORD_BYTES:
        raise SettingError(f"--data: {path}:{number} is longer than {MAX_RECORD_BYTES} bytes")
    try:
        value = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise SettingError(f"--data: {path}:{number}: expected a JSON object: {error.msg}") from None
    if not isinstance(value, dict):
        raise SettingError(f"--data: {path}:{number}: expected a JSON object, found {str(value)[:60]!r}")
    return value


def fields_of(
    data: Sequence[dict[str, Any]] | None, count: int, seed: int, nonce: str
) -> Iterator[dict[str, Any]]:
    """The fields of `count` events: those of `data` in order, repeated, or made-up posts.

    Each post's text begins with `nonce` and its number: a fresh nonce is in no prefix cache and in no
    journal.
    """
    if data is not None:
        return islice(cycle(data), count)
    posts = (dict(post(seed, index, topic_of(seed, index))) for index in range(count))
    return ({**each, "text": f"{nonce}-{index} {each['text']}"} for index, each in enumerate(posts))


def due_offsets(load: EventLoad) -> list[float]:
    """When events are due, in seconds after the start. Raises `SettingError` as schedules do."""
    return load.schedule.due_s(load.events, Random(f"schedule {load.seed}"))


def event_lines(
    ids: Sequence[str], due_us: Sequence[int], fields: Iterable[dict[str, Any]]
) -> Iterator[bytes]:
    for id, due, own in zip(ids, due_us, fields, strict=True):
        yield b"%d %b %b\n" % (due, id.encode(), orjson.dumps({**own, ID: id, DUE_US: due}))
