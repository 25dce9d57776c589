"""A conversation with a session application, for `forebay chat`.

Messages go through the pipeline's source, and turns are read from its committed results.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from forebay.apps.sessions import SessionsSpec
from forebay.apps.sessions_page import Talk, read_sessions
from forebay.clients.s3.location import location_of
from forebay.connectors.base import SinkSettings
from forebay.connectors.files.settings import JsonlSink, JsonlSource
from forebay.connectors.files.unpack import UTF_8
from forebay.connectors.jars import KAFKA, installed_jar
from forebay.connectors.kafka.settings import KafkaSink, KafkaSource
from forebay.engine.replica import list_models
from forebay.errors import ForebayError, PipelineFailed, SettingError
from forebay.flink.jvm import HEAP_MB, start_jvm
from forebay.json_numbers import read_json
from forebay.pipeline.chat_record import MARK, message_record
from forebay.pipeline.followed_lines import FollowedLines
from forebay.pipeline.live.outputs import ALL_BYTES, NEWEST_BYTES, NewestLines
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import StateStore
from forebay.settings import Settings, read_secret

if TYPE_CHECKING:
    from forebay.connectors.kafka.clients import FollowedTopic

FILE = "forebay-chat.jsonl"
MAX_KEYS = 1000
NEWEST_RECORDS = 5000
CHECK_S = 5.0
LATER = "the message is in the source, and is answered when the pipeline can"
Send = Callable[[bytes], None]
Found = TypeVar("Found")


class CommittedLines(Protocol):
    def new(self) -> Iterator[bytes]: ...


class Conversation:
    """The sessions of one key. Methods block.

    They raise `PipelineFailed`; of an object store `StoreAway` or `StoreRefused`; of a topic `KafkaAway`, or
    `SettingError` if it is missing or Kafka rejects the client. Topics need `start_kafka` first.
    """

    def __init__(self, spec: PipelineSpec, key: str) -> None:
        if not isinstance(spec.application, SessionsSpec):
            found = "none" if spec.application is None else spec.application.type
            raise SettingError(f"expected a pipeline with the application sessions, found {found}")
        for what, sink in (("the turns", spec.sink), ("dead letters", spec.dead_letters)):
            if not isinstance(sink, JsonlSink | KafkaSink):
                raise SettingError(
                    f"{what} go to {sink.summary()}, which cannot be read here; expected a sink of type "
                    f"jsonl or kafka"
                )
        self._spec = spec
        self._text = spec.application.text
        self._key = key
        self._clients = ExitStack()
        self._topics: list[FollowedTopic] = []
        self._followed = [self._follow(sink) for sink in (spec.sink, spec.dead_letters)]
        self._lines = NewestLines(NEWEST_BYTES)
        self.keys: dict[str, None] = {}

    def close(self) -> None:
        self._clients.close()

    def _follow(self, sink: SinkSettings) -> CommittedLines:
        if isinstance(sink, JsonlSink):
            return FollowedLines(location_of(sink.path), None, ALL_BYTES)
        from forebay.connectors.kafka.clients import FollowedTopic

        assert isinstance(sink, KafkaSink)
        topic = FollowedTopic(sink.cluster(), sink.topic, NEWEST_RECORDS)
        self._topics.append(self._clients.enter_context(closing(topic)))
        return topic

    @property
    def partial(self) -> bool:
        """Whether the topic has, or had, turns older than those that were read."""
        return isinstance(self._spec.sink, KafkaSink) and self._topics[0].partial

    def skip(self) -> None:
        for topic in self._topics:
            topic.skip()

    def talks(self) -> list[Talk]:
        for _ in self._new(b""):
            continue
        return read_sessions(self._lines.lines, self._text)

    def turn(self, mark: str) -> dict[str, Any] | None:
        return next((value for value in self._new(mark.encode()) if _is_marked(value, mark)), None)

    def _new(self, part: bytes) -> Iterator[dict[str, Any]]:
        try:
            for line in (line for followed in self._followed for line in followed.new()):
                try:
                    value = read_json(line)
                    key = value["key"]
                except (ValueError, KeyError, TypeError):
                    continue
                if key == self._key:
                    self._lines.add(line)
                elif isinstance(key, str) and len(self.keys) < MAX_KEYS:
                    self.keys[key] = None
                if part in line:
                    yield value
        except OSError as error:
            raise PipelineFailed(f"the turns cannot be read: {error}") from None

    def record(self, text: str, mark: str, now_ms: int) -> bytes:
        """Raises `SettingError`."""
        return message_record(self._spec, self._key, text, mark=mark, now_ms=now_ms)


def _is_marked(value: dict[str, Any], mark: str) -> bool:
    """Whether it is the turn or the dead letter of a message.

    The end of a session has the id of the event behind it, but another event's fields.
    """
    try:
        if "cause" in value:
            return bool(read_json(value["input"].encode())[MARK] == mark)
        return bool(value["fields"][MARK] == mark and "ended" not in value["answer"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def start_kafka(settings: Settings) -> None:
    jars = [installed_jar(KAFKA, settings.connectors)]
    start_jvm(settings.run / "flink", heap_mb=HEAP_MB, jars=jars, archive_dir=settings.java)


@contextmanager
def way_in(spec: PipelineSpec, key: str, settings: Settings) -> Iterator[Send]:
    """Open the pipeline's source for records of a key. Raises `SettingError`."""
    source = spec.source
    whole = getattr(source, "payload", None) is None
    if isinstance(source, JsonlSource) and source.follow and source.encoding == UTF_8 and whole:
        yield lambda record: _append(Path(source.path) / FILE, record)
        return
    if not isinstance(source, KafkaSource) or not whole or not _takes_messages(source):
        raise SettingError(
            f"a message cannot be added to the source ({source.summary()}); expected jsonl in UTF-8 with "
            f"`follow: true`, or kafka with one topic of JSON objects and without `until_latest`; neither "
            f"with `payload`. Rows of CSV and a registry's schemas have no field for the mark by which the "
            f"answer is found"
        )
    from forebay.connectors.kafka.clients import kafka_writer

    start_kafka(settings)
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
    running: Callable[[], bool],
    trouble: Callable[[], str],
    report: Callable[[str], None],
    every_s: float,
    report_s: float,
    timeout_s: float,
    monotonic_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Block until the message's turn is committed. `report` receives the reason every `report_s`.

    Raises `PipelineFailed` after `timeout_s`, and if the pipeline has stopped.
    """
    begun_s = reported_s = monotonic_s()
    while True:
        found, unread = _tried(lambda: conversation.turn(mark))
        if found is not None:
            return found
        now_s = monotonic_s()
        left_s = begun_s + timeout_s - now_s
        if left_s <= 0 or now_s - reported_s >= report_s:
            reported_s = now_s
            runs, unknown = _tried(running)
            if runs is False:
                # Its last turns may have been committed since.
                found, unread = _tried(lambda: conversation.turn(mark))
                if found is not None:
                    return found
                raise PipelineFailed(f"the pipeline has stopped; {LATER}")
            why = unread or unknown or trouble() or "the pipeline runs"
            detail = f"no answer for {now_s - begun_s:.0f} s; {why}"
            if left_s <= 0:
                raise PipelineFailed(f"{detail}; {LATER}")
            report(detail)
        sleep(min(every_s, left_s))


def _tried(call: Callable[[], Found]) -> tuple[Found | None, str]:
    try:
        return call(), ""
    except ForebayError as error:
        return None, str(error)


def engine_trouble(spec: PipelineSpec, store: StateStore, *, most_s: float = CHECK_S) -> str:
    try:
        state, secret = store.read(), spec.engine.secret()
        api_key = None if secret is None else read_secret(secret)
    except ForebayError as error:
        return f"the engine cannot be checked: {error}"
    urls = ({} if state is None else state.settings.get("engine") or {}).get("url") or ()
    try:
        return asyncio.run(asyncio.wait_for(_trouble_of(urls, api_key), most_s))
    except asyncio.TimeoutError:
        return f"the engine does not answer within {most_s:g} s: {', '.join(urls)[:200]}"


async def _trouble_of(urls: Sequence[str], api_key: str | None) -> str:
    async def check(url: str) -> str:
        try:
            await list_models(url, api_key=api_key)
        except ForebayError as error:
            return f"the engine does not answer: {error}"
        return ""

    checks = [asyncio.create_task(check(url)) for url in urls]
    detail = ""
    try:
        for done in asyncio.as_completed(checks):
            if not (detail := await done):
                break
    finally:
        for task in checks:
            task.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
    return detail
