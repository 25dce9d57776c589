"""Records nested in another object: Debezium change events, CloudEvents, notifications."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forebay.errors import MalformedRecord, NoRecord
from forebay.records import JSON

ENVELOPE = "envelope"
"""Field for the rest of the object that held the record."""


def record_in(
    value: Mapping[str, JSON], path: str, parse: Callable[[bytes], Mapping[str, JSON]]
) -> Mapping[str, JSON]:
    """The record's fields at `path`, plus the rest of its object as `envelope` unless the record has that
    field.

    `parse` reads a record stored as text. Raises `NoRecord` if the field is missing or null,
    `MalformedRecord` if it is not a record.
    """
    *outer, last = path.split(".")
    holder: JSON = value
    for name in outer:
        holder = holder.get(name) if isinstance(holder, Mapping) else None
    if not isinstance(holder, Mapping) or last not in holder:
        # This imports Jinja, which `forebay --help` should not wait for.
        from forebay.engine.prompt import names_of

        raise NoRecord(f"payload: the field {path!r} is missing; the value has {names_of(value)}")
    inner = holder[last]
    if inner is None:
        deletion = ": it is a deletion, its `op` is 'd'" if holder.get("op") == "d" else ""
        raise NoRecord(f"payload: the field {path!r} is null{deletion}")
    if isinstance(inner, str):
        try:
            inner = parse(inner.encode("utf-8", "surrogatepass"))
        except MalformedRecord as error:
            raise MalformedRecord(f"payload: the text in the field {path!r}: {error}") from None
    if not isinstance(inner, Mapping):
        raise MalformedRecord(
            f"payload: the field {path!r} is {type(inner).__name__}; expected an object, or text with one"
        )
    rest = {name: part for name, part in holder.items() if name != last}
    return inner if ENVELOPE in inner else {**inner, ENVELOPE: rest}
