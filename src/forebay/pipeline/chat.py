"""A conversation with a session application, for `forebay chat`: messages go through the pipeline's source,
turns come from its committed results. So a message is part of the key's session, in order and exactly once.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from forebay.apps.sessions import SessionsSpec
from forebay.apps.sessions_page import Talk, read_sessions
from forebay.clients.s3.location import location_of
from forebay.connectors.files.settings import JsonlSource
from forebay.connectors.files.sink import FollowedLines
from forebay.connectors.files.unpack import UTF_8
from forebay.connectors.jars import KAFKA, installed_jar
from forebay.connectors.kafka.settings import KafkaSource
from forebay.engine.prompt import fields_in
from forebay.engine.replica import list_models
from forebay.errors import ForebayError, PipelineFailed, RecordError, SettingError
from forebay.flink.jvm import HEAP_MB, start_jvm
from forebay.json_numbers import read_json
from forebay.pipeline.live.outputs import ALL_BYTES, NEWEST_BYTES, NewestLines
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import StateStore
from forebay.settings import Settings, read_secret

FILE = "forebay-chat.jsonl"
MARK = "forebay_chat"
"""Field of a message's record, by which its turn is found."""
ONE_FIELD = re.compile(r"\{\{\s*(?:event\.)?(?P<path>\w+(?:\.\w+)*)\s*\}\}")
MAX_KEYS = 1000
Send = Callable[[bytes], None]


class Conversation:
    """The sessions of one key. Methods block, and raise `PipelineFailed` or the object store's errors."""

    def __init__(self, spec: PipelineSpec, key: str) -> None:
        if not isinstance(spec.application, SessionsSpec):
            found = "none" if spec.application is None else spec.application.type
            raise SettingError(f"expected a pipeline with the application sessions, found {found}")
        places = spec.directories()
        if "sink.path" not in places:
            raise SettingError(
                f"the turns go to {spec.sink.summary()}, which cannot be read here; expected a sink of type "
                f"jsonl"
            )
        self._spec = spec
        self._text = spec.application.text
        self._key = key
        self._followed = [FollowedLines(location_of(path), None, ALL_BYTES) for path in places.values()]
        self._lines = NewestLines(NEWEST_BYTES)
        self.keys: dict[str, None] = {}

    def talks(self) -> list[Talk]:
        """The sessions of the key so far, the newest last; and the other keys that were seen, as `keys`."""
        for _ in self._new():
            continue
        return read_sessions(self._lines.lines, self._text)

    def turn(self, mark: str) -> dict[str, Any] | None:
        """The result or dead letter of the message with this mark, if it is new since the last call."""
        return next((value for value, line in self._new() if mark.encode() in line), None)

    def _new(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        try:
            for line in (line for followed in self._followed for line in followed.new()):
                try:
                    value = read_json(line)
                    key = value["key"]
                except (ValueError, KeyError, TypeError):
                    continue
                if key == self._key:
                    self._lines.add(line)
                    yield value, line
                elif isinstance(key, str) and len(self.keys) < MAX_KEYS:
                    self.keys[key] = None
        except OSError as error:
            raise PipelineFailed(f"the turns cannot be read: {error}") from None

    def record(self, text: str, mark: str, now_ms: int) -> bytes:
        """The record of a message. Raises `SettingError`."""
        spec, source = self._spec, self._spec.source
        fields: dict[str, Any] = {MARK: mark}
        for name in () if spec.id is None else fields_in(spec.id, "id"):
            fields[name] = mark
        time_of = getattr(source, "event_time", lambda: None)()
        if time_of is not None:
            _put(fields, time_of.path, time_of.written(now_ms))
        _put(fields, self._text, text.encode("utf-8", "replace").decode())
        template, one = spec.key_template(), ONE_FIELD.fullmatch((spec.key or "").strip())
        if one is not None:
            _put(fields, one["path"], self._key)
        try:
            assert template is not None
            if one is None or template.render(fields, time_ms=now_ms) != self._key:
                raise SettingError(
                    f"key: expected a template of one field, such as {{{{ user }}}}, to write a message of "
                    f"the key {self._key[:80]!r}; found {spec.key!r}"
                )
        except RecordError as error:
            raise SettingError(f"key: {error}") from None
        record = orjson.dumps(fields)
        most = getattr(source, "max_record_bytes", len(record))
        if not text.strip() or len(record) > most:
            raise SettingError(
                f"the message: expected a text in a record of at most {most:,} bytes, found {len(record):,}"
            )
        return record


def _put(fields: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        fields = fields.setdefault(name, {})
    fields[last] = value


@contextmanager
def way_in(spec: PipelineSpec, key: str, settings: Settings) -> Iterator[Send]:
    """Opens the way into the pipeline's source for records of a key. Raises `SettingError`."""
    source = spec.source
    whole = getattr(source, "payload", None) is None
    if isinstance(source, JsonlSource) and source.follow and source.encoding == UTF_8 and whole:
        yield lambda record: _append(Path(source.path) / FILE, record)
        return
    if not isinstance(source, KafkaSource) or not whole or not _takes_messages(source):
        raise SettingError(
            f"a message cannot be added to the source ({source.summary()}); expected jsonl in UTF-8 with "
            f"`follow: true`, or kafka with one topic of JSON objects and without `until_latest`; neither "
            f"with `payload`"
        )
    from forebay.connectors.kafka.clients import kafka_writer

    start_jvm(settings.run / "flink", heap_mb=HEAP_MB, jars=[installed_jar(KAFKA, settings.connectors)])
    with kafka_writer(source.cluster(), source.topics[0]) as writer:

        def send(record: bytes) -> None:
            # With its key: Kafka keeps the order of a partition only.
            writer.write(record, key.encode())
            writer.flush()

        yield send


def _takes_messages(source: KafkaSource) -> bool:
    one = source.format == "jsonl" and len(source.topics) == 1
    return one and not source.dead_letters and not source.until_latest


def _append(file: Path, record: bytes) -> None:
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            end = os.lseek(descriptor, 0, os.SEEK_END)
            # A line that was cut by a full disk must not swallow this one.
            begin = b"\n" if end and os.pread(descriptor, 1, end - 1) != b"\n" else b""
            line = begin + record + b"\n"
            if (written := os.write(descriptor, line)) < len(line):
                raise PipelineFailed(f"{file}: only {written} of {len(line)} bytes could be written")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PipelineFailed(f"{file} cannot be written: {error.strerror}") from None


def await_turn(
    conversation: Conversation,
    mark: str,
    *,
    every_s: float,
    report_s: float,
    report: Callable[[float], None],
    monotonic_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Block until the message's turn is committed. `report` gets the time waited every `report_s`, and may
    raise."""
    begun_s = reported_s = monotonic_s()
    while (found := conversation.turn(mark)) is None:
        if monotonic_s() - reported_s >= report_s:
            reported_s = monotonic_s()
            report(reported_s - begun_s)
        sleep(every_s)
    return found


def engine_trouble(spec: PipelineSpec, store: StateStore) -> str:
    """Why no replica of the last run answers; empty if one does, or if the run starts its own. Blocks."""
    state = store.read()
    engine = {} if state is None else state.settings.get("engine") or {}
    said, secret = "", spec.engine.secret()
    api_key = None if secret is None else read_secret(secret)
    for url in engine.get("url") or ():
        try:
            asyncio.run(list_models(url, api_key=api_key))
        except ForebayError as error:
            said = f"the engine does not answer: {error}"
        else:
            return ""
    return said
