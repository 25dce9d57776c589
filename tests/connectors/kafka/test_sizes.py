"""The size of a record is Kafka's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.connectors.kafka.cluster import SHADED
from forebay.connectors.kafka.written import DEFAULTS, MIN_LIMIT_BYTES, REQUEST, RecordLimit, record_bytes
from forebay.errors import SettingError

RECORDS: list[tuple[bytes | None, bytes | None, dict[str, bytes | None]]] = [
    (None, b"", {}),
    (b"", b"v", {"": b""}),
    (b"k" * 63, b"v" * 64, {"a": b"x" * 8191, "é": None}),
    (b"k" * 8192, b"v" * 1_048_576, {"long" * 40: b"\xff"}),
    (b"\xff", None, {str(n): b"" for n in range(70)}),
]


@pytest.mark.flink
def test_records_have_the_size_that_kafkas_producer_counts(kafka_jar: Path, flink_logs: Path) -> None:
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


def test_the_smaller_of_the_producers_limits_counts() -> None:
    assert RecordLimit.of({}) == RecordLimit(DEFAULTS[REQUEST], REQUEST, given=False)
    limit = RecordLimit.of({"max.request.size": 50_000_000, "acks": "all"})
    assert (limit.bytes, limit.name, limit.given) == (33_554_432, "buffer.memory", False)
    limit = RecordLimit.of({"max.request.size": "50000", "buffer.memory": 40_000})
    assert (limit.bytes, limit.name, limit.given) == (40_000, "buffer.memory", True)
    assert RecordLimit.of({REQUEST: MIN_LIMIT_BYTES}).bytes == MIN_LIMIT_BYTES


@pytest.mark.parametrize("value", ["", "-1", "1e6", "²", 8_191, True, None])
def test_a_limit_that_is_no_number_or_too_small_is_refused(value: object) -> None:
    with pytest.raises(SettingError, match=r"^max\.request\.size: expected .*found"):
        RecordLimit.of({REQUEST: value})


def test_a_record_over_the_limit_is_named_with_size_limit_and_topic() -> None:
    assert RecordLimit.of({}).exceeded("out", 2_000_000) == (
        "the record has 2000000 bytes (key, value and headers), but at most 1048576 go to topic 'out' "
        "(max.request.size, the default)"
    )
