"""Builds the source record of a `forebay chat` message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from forebay.connectors.formats import Format
from forebay.connectors.kafka.settings import KafkaSource
from forebay.engine.prompt import fields_in
from forebay.errors import RecordError, SettingError
from forebay.pipeline.spec import PipelineSpec
from forebay.records import DeadLetter, Event

MARK = "forebay_chat"
ONE_FIELD = re.compile(r"\{\{\s*(?:event\.)?(?P<path>\w+(?:\.\w+)*)\s*\}\}")
KAFKA_KEY = "kafka.key"
NOT_HERE = "a message cannot be written to this pipeline"


def message_record(spec: PipelineSpec, key: str, text: str, *, mark: str, now_ms: int) -> bytes:
    """Raises `SettingError`, also if the pipeline would read another key, text or id."""
    for what, given in (("key", key), ("the message", text)):
        try:
            given.encode()
        except UnicodeEncodeError:
            raise SettingError(f"{what}: expected UTF-8, found {given[:80]!r}") from None
    if not text.strip():
        raise SettingError("the message is empty; expected a text")
    assert spec.application is not None
    source, text_path = spec.source, spec.application.text_field or ""
    of_kafka = isinstance(source, KafkaSource)
    one = ONE_FIELD.fullmatch((spec.key or "").strip())
    if one is None or (of_kafka and one["path"].startswith("kafka.") and one["path"] != KAFKA_KEY):
        raise SettingError(
            f"key: expected a template of one field of the record, such as {{{{ user }}}}, to write a "
            f"message of the key {key[:80]!r}; found {spec.key!r}"
        )
    fields: dict[str, Any] = {MARK: mark}
    for found in ONE_FIELD.finditer(spec.id or ""):
        _put(fields, found["path"], mark)
    time = getattr(source, "event_time", lambda: None)()
    if time is not None:
        _put(fields, time.path, time.written(now_ms))
    _put(fields, text_path, text)
    _put(fields, one["path"], key)
    for name in () if spec.id is None else fields_in(spec.id, "id"):
        fields.setdefault(name, mark)
    if of_kafka:
        # The source adds it.
        fields.pop("kafka", None)
    record = orjson.dumps(fields)
    most = getattr(source, "max_record_bytes", len(record))
    if len(record) > most:
        raise SettingError(
            f"the message: expected a text in a record of at most {most:,} bytes, found {len(record):,}"
        )
    read: Event | DeadLetter
    form = Format(time=time, max_record_bytes=most)
    if isinstance(source, KafkaSource):
        from forebay.connectors.kafka.source import read_record

        place = {"topic": source.topics[0], "partition": 0, "offset": 0, "time_ms": now_ms}
        read = read_record(form, key.encode(), record, {}, place)
    else:
        read = form.read(record)
    _check(spec, read, key=key, text_path=text_path, text=text, mark=mark)
    return record


def _check(
    spec: PipelineSpec, read: Event | DeadLetter, *, key: str, text_path: str, text: str, mark: str
) -> None:
    from forebay.flink.request_handler import PRIORITY

    if isinstance(read, DeadLetter):
        raise SettingError(f"{NOT_HERE}: it would become a dead letter ({read.cause}: {read.detail})")
    templates = {"key": spec.key_template(), "id": spec.id_template(), "priority": spec.priority_template()}
    try:
        found = {
            name: template.render(read.fields, time_ms=read.time_ms)
            for name, template in templates.items()
            if template is not None
        }
    except RecordError as error:
        raise SettingError(f"{NOT_HERE}: it would become a dead letter ({error.cause}: {error})") from None
    right = {
        "key": found["key"] == key,
        "id": mark in found.get("id", mark) or "kafka.offset" in (spec.id or ""),
        "priority": PRIORITY.fullmatch(found.get("priority", "0")) is not None,
        "application.text": _at(read.fields, text_path) == text,
        MARK: read.fields.get(MARK) == mark,
    }
    if wrong := ", ".join(name for name, same in right.items() if not same):
        raise SettingError(
            f"{NOT_HERE}: it would have the wrong {wrong}; expected a different field for each of key, id, "
            f"time and text, and a key without white space at its ends, found {key[:80]!r}"
        )


def _put(fields: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        fields = fields.setdefault(name, {})
        if not isinstance(fields, dict):
            raise SettingError(
                f"{NOT_HERE}: {path} is a field of {name}, which has a value of its own; expected a "
                f"different field for each of key, id, time and text"
            )
    fields[last] = value


def _at(fields: Any, path: str) -> Any:
    for name in path.split("."):
        fields = fields.get(name) if isinstance(fields, Mapping) else None
    return fields
