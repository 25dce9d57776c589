"""A record of the corpus, and what must become of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from forebay.connectors.event_time import EventTime
from forebay.connectors.formats import Format
from forebay.errors import MalformedRecord
from forebay.records import DeadLetter, Event

ADDED = frozenset(("kafka", "sse"))
"""Fields that a source adds."""


JSON_LINES = Format()


@dataclass(frozen=True, slots=True)
class Refused:
    """A dead letter with this cause, whose detail contains `words`."""

    words: str
    cause: str = MalformedRecord.cause


@dataclass(frozen=True, slots=True)
class Case:
    """One record. `expected`: its fields, or why it is refused; `time_ms`: its time, if `form` names one."""

    name: str
    raw: bytes
    expected: Mapping[str, Any] | Refused
    form: Format = JSON_LINES
    time_ms: int | None = None


def cases(found: Sequence[Any]) -> pytest.MarkDecorator:
    """One test per case, by distinct names."""
    names = [each.name for each in found]
    assert len(set(names)) == len(names), [name for name in names if names.count(name) > 1]
    return pytest.mark.parametrize("case", found, ids=names)


def at(format: str = "iso8601", zone: str = "UTC", path: str = "at") -> Format:
    """JSON with the time in the field `path`."""
    return Format(time=EventTime(path, format, zone))


def check(record: Event | DeadLetter, expected: Mapping[str, Any] | Refused, where: str = "") -> None:
    """Compare a record with the expectation, to the digit and in the order of fields."""
    if isinstance(expected, Refused):
        assert isinstance(record, DeadLetter), (where, record)
        assert record.cause == expected.cause, (where, record)
        assert expected.words in record.detail, (where, record)
        return
    assert isinstance(record, Event), (where, record)
    fields = {name: value for name, value in record.fields.items() if name not in ADDED or name in expected}
    assert repr(fields) == repr(dict(expected)), where
