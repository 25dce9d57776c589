"""Each source's own reader, without Flink: from the bytes of one record to an event or a dead letter."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow

from forebay.codec import decode
from forebay.connectors.feeds.feed import Feed, Mark, Received
from forebay.connectors.feeds.jetstream import JetstreamFeed, ReplayWindow, _time_us
from forebay.connectors.feeds.source import Poll, Polled
from forebay.connectors.feeds.sse import SseDecoder, SseFeed
from forebay.connectors.files.reader import FileCursor, FilesReader, LineReader, parts_of
from forebay.connectors.formats import BOM, Format, dead_letter_json
from forebay.connectors.kafka.source import read_record
from forebay.connectors.letters import read_letter
from forebay.pipeline.ask import Lines
from forebay.records import DeadLetter, Event

Record = Event | DeadLetter
WIKIMEDIA = "https://stream.wikimedia.org/v2/stream/recentchange"
PLACE = {"topic": "in", "partition": 0, "offset": 7, "time_ms": 99}


def read_file(path: Path, reader: LineReader) -> list[Record]:
    """The records of the file or folder at `path`."""
    files = FilesReader(parts_of(path, reader), reader)
    try:
        return [decode(data) for _, data in files.records(FileCursor()) if data is not None]
    finally:
        files.close()


def zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("in.jsonl", data)
    return out.getvalue()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": lambda data: gzip.compress(data, 1),
    "zip": zipped,
    "zstd": lambda data: pyarrow.Codec("zstd").compress(data, asbytes=True),
}


def from_feed(feed: Feed, received: Received | None, form: Format) -> Record:
    assert received is not None
    record: Record = decode(Poll(Polled(feed, form))._encoded(received))
    return record


def from_sse(raw: bytes, form: Format) -> Record:
    feed = SseFeed(WIKIMEDIA, max_record_bytes=form.max_record_bytes)
    (event,) = SseDecoder(max_bytes=form.max_record_bytes).feed(b"data: " + raw + b"\n\n")
    return from_feed(feed, feed._received(Mark(), event), form)


def from_websocket(raw: bytes, form: Format) -> Record:
    feed = JetstreamFeed("wss://jetstream2.us-east.bsky.network/subscribe")
    return from_feed(feed, feed._received(ReplayWindow.of(None), raw, _time_us(raw)), form)


def from_kafka(raw: bytes, form: Format) -> Record:
    return read_record(form, b"k", raw, {"h": b"v"}, PLACE)


def from_letter(raw: bytes, form: Format) -> Record:
    letter = DeadLetter(raw, "timeout", "too slow", position="in.jsonl@3")
    return read_letter(form, dead_letter_json(letter).encode(), "letters.jsonl@1")


def from_kafka_letter(raw: bytes, form: Format) -> Record:
    letter = DeadLetter(raw, "timeout", "too slow", position="in/0@7", record_key=b"k", record_ms=99)
    return read_letter(form, dead_letter_json(letter).encode(), "letters/0@1")


def from_stdin(raw: bytes, form: Format) -> Record:
    lines = Lines(io.BytesIO(raw + b"\n"), "text" if form.kind == "text" else "jsonl", form.max_record_bytes)
    record = lines.next()
    assert record is not None
    assert lines.next() is None
    return record


def everywhere(raw: bytes, form: Format, folder: Path) -> Iterator[tuple[str, Record]]:
    """The record in `raw` by the name of each source that can carry it."""
    yield "kafka", from_kafka(raw, form)
    yield "letter", from_letter(raw, form)
    yield "kafka letter", from_kafka_letter(raw, form)
    yield "websocket", from_websocket(raw, form)
    if not {*b"\r\n"} & {*raw}:
        yield "sse", from_sse(raw, form)
    if b"\n" in raw or raw.endswith(b"\r") or not raw.removeprefix(BOM).strip():
        return
    for name, pack in PACKINGS.items():
        path = folder / name
        path.write_bytes(pack(raw + b"\n"))
        (record,) = read_file(path, LineReader(form))
        yield name, record
    if form == Format(form.kind, max_record_bytes=form.max_record_bytes) and form.kind != "csv":
        yield "stdin", from_stdin(raw, form)
