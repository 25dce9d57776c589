"""Dead letters that are truncated to a topic's limit."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.formats import Format, parse_dead_letter
from forebay.connectors.kafka.cluster import SHADED
from forebay.connectors.kafka.source import read_record
from forebay.connectors.kafka.written import (
    DEFAULTS,
    MIN_LIMIT_BYTES,
    REQUEST,
    RecordLimit,
    fitting_record,
    record_bytes,
    record_of,
)
from forebay.connectors.letters import read_letter
from forebay.errors import MalformedRecord, SettingError
from forebay.records import DeadLetter, Event

LETTER = DeadLetter(
    raw=b"x" * 10,
    cause="timeout",
    detail="d",
    id="in/0@1",
    record_key=b"k",
    headers={"trace": b"t", "null": None},
)
times = st.integers(0, 30_000)
scripts = st.sampled_from(["a", "é", "€", "😀", "\n", "\0", '"'])
raws = st.builds(lambda text, n: text.encode() * n, scripts, times) | st.builds(
    lambda n: b"\xff" * n, st.integers(0, 60_000)
)


def test_dead_letter_that_fits_is_unchanged() -> None:
    key, value, headers = fitting_record(LETTER, MIN_LIMIT_BYTES)
    assert (key, value, headers) == record_of(LETTER)
    assert "cut_bytes" not in orjson.loads(value)
    assert headers == {"trace": b"t", "null": None, "forebay-id": b"in/0@1", "forebay-cause": b"timeout"}


@given(raws, st.integers(MIN_LIMIT_BYTES, 2 * MIN_LIMIT_BYTES))
def test_input_is_cut_as_little_as_possible(raw: bytes, limit: int) -> None:
    letter = replace(LETTER, raw=raw)
    record = fitting_record(letter, limit)
    size = record_bytes(*record)
    assert size <= limit
    line = orjson.loads(record[1])
    kept = base64.b64decode(line["input_base64"]) if "input_base64" in line else line["input"].encode()
    cut = line.get("cut_bytes", {"input": 0})
    assert raw.startswith(kept)
    assert cut == {"input": len(raw) - len(kept)}
    assert (record[0], record[2]["trace"]) == (b"k", b"t")
    if cut["input"]:
        # A character takes at most six bytes as JSON, three bytes four as base64; one digit may be saved.
        assert size > limit - 8
        with pytest.raises(MalformedRecord, match=f"cut by {cut['input']} bytes"):
            parse_dead_letter(record[1])
    else:
        assert parse_dead_letter(record[1]).raw == raw


@pytest.mark.parametrize(
    ("changes", "cut"),
    [
        ({"headers": {"a": b"x" * 40_000, "b": None}}, {"headers": 40_002}),
        ({"record_key": b"x" * 40_000}, {"record_key": 40_000}),
        ({"id": "i" * 40_000}, {"id": 39_872}),
        ({"detail": "\0" * 4096, "position": "é" * 40_000}, {"position": 79_744, "detail": 3968}),
    ],
)
def test_other_too_large_fields_are_cut_and_counted(changes: dict[str, object], cut: dict[str, int]) -> None:
    letter = replace(LETTER, **changes)  # type: ignore[arg-type]
    record = fitting_record(letter, MIN_LIMIT_BYTES)
    assert record_bytes(*record) <= MIN_LIMIT_BYTES
    line = orjson.loads(record[1])
    assert line["cut_bytes"] == cut
    assert line["input"] == "x" * 10
    assert record[2]["forebay-cause"] == b"timeout"


@given(
    st.builds(
        DeadLetter,
        raw=raws,
        cause=st.just("\0" * 9999),
        detail=st.just("\0" * 4096),
        id=st.just("\0" * 50_000),
        key=st.just("😀" * 50_000),
        position=st.just("\n" * 50_000),
        record_key=st.none() | st.just(b"k" * 50_000),
        headers=st.just({"\0" * 50_000: b"x"}),
    )
)
def test_every_dead_letter_fits_into_the_smallest_limit(letter: DeadLetter) -> None:
    assert record_bytes(*fitting_record(letter, MIN_LIMIT_BYTES)) <= MIN_LIMIT_BYTES


@given(
    value=st.none() | st.builds(lambda n: b"{" + b" " * n + b"}", times),
    key=st.none() | st.builds(lambda n: b"k" * n, times),
    header=st.none() | st.builds(lambda n: b"h" * n, times),
    id=st.builds(lambda n: "i" * n, times),
)
def test_dead_letter_is_read_back_whole_or_rejected(
    value: bytes | None, key: bytes | None, header: bytes | None, id: str
) -> None:
    place = {"topic": "t" * 249, "partition": 0, "offset": 1, "time_ms": 5}
    record = read_record(Format(), key, value, {"h": header}, place)
    letter = replace(
        DeadLetter(record.raw, "timeout", "d") if isinstance(record, Event) else record,
        id=id, time_ms=5, position=record.position, record_key=key, headers={"h": header}, record_ms=5,
    )  # fmt: skip
    _, line, _ = fitting_record(letter, MIN_LIMIT_BYTES)
    again = read_letter(Format(), line, "letters/0@1")
    assert again == record or "was cut by" in getattr(again, "detail", "")


RECORDS: list[tuple[bytes | None, bytes | None, dict[str, bytes | None]]] = [
    (None, b"", {}),
    (b"", b"v", {"": b""}),
    (b"k" * 63, b"v" * 64, {"a": b"x" * 8191, "é": None}),
    (b"k" * 8192, b"v" * 1_048_576, {"long" * 40: b"\xff"}),
    (b"\xff", None, {str(n): b"" for n in range(70)}),
]


@pytest.mark.flink
def test_record_size_equals_the_producers_estimate(kafka_jar: Path, flink_logs: Path) -> None:
    from pyflink.java_gateway import get_gateway

    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768, jars=(kafka_jar,))
    gateway = get_gateway()
    kafka: Any = gateway.jvm
    for name in SHADED.split("."):
        kafka = getattr(kafka, name)

    def kafkas(key: bytes | None, value: bytes | None, headers: dict[str, bytes | None]) -> int:
        made = gateway.new_array(kafka.common.header.Header, len(headers))
        for n, (name, content) in enumerate(headers.items()):
            made[n] = kafka.common.header.internals.RecordHeader(name, content)
        wrap = gateway.jvm.java.nio.ByteBuffer.wrap
        key_and_value = [None if data is None else wrap(data) for data in (key, value)]
        records = kafka.common.record
        return int(
            records.AbstractRecords.estimateSizeInBytesUpperBound(
                2, records.CompressionType.NONE, *key_and_value, made
            )
        )

    assert [record_bytes(*record) for record in RECORDS] == [kafkas(*record) for record in RECORDS]


def test_smaller_producer_limit_applies() -> None:
    assert RecordLimit.of({}) == RecordLimit(DEFAULTS[REQUEST], REQUEST, given=False)
    limit = RecordLimit.of({"max.request.size": 50_000_000, "acks": "all"})
    assert (limit.bytes, limit.name, limit.given) == (33_554_432, "buffer.memory", False)
    limit = RecordLimit.of({"max.request.size": "50000", "buffer.memory": 40_000})
    assert (limit.bytes, limit.name, limit.given) == (40_000, "buffer.memory", True)
    assert RecordLimit.of({REQUEST: MIN_LIMIT_BYTES}).bytes == MIN_LIMIT_BYTES


@pytest.mark.parametrize("value", ["", "-1", "1e6", "²", 8_191, True, None])
def test_invalid_or_too_small_limit_is_rejected(value: object) -> None:
    with pytest.raises(SettingError, match=r"^max\.request\.size: expected .*found"):
        RecordLimit.of({REQUEST: value})


def test_a_record_over_the_limit_is_named_with_size_limit_and_topic() -> None:
    assert RecordLimit.of({}).exceeded("out", 2_000_000) == (
        "the record has 2000000 bytes (key, value and headers), but at most 1048576 go to topic 'out' "
        "(max.request.size, the default)"
    )
