"""Records as events, results as records: pure, without a broker."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.codec import decode, encode
from forebay.connectors.event_time import EventTime
from forebay.connectors.formats import Format, dead_letter_json
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.sink import OutputWriter, TopicSink, sink_options
from forebay.connectors.kafka.source import ReadRecord, TopicSource, read_record, source_options, text_of
from forebay.connectors.kafka.written import record_of
from forebay.connectors.letters import read_letter
from forebay.errors import SettingError
from forebay.records import DeadLetter, Event, Result, Usage
from forebay.settings import SecretRef

PLACE = {"topic": "in", "partition": 3, "offset": 17, "time_ms": 1_700_000_000_000}
CLUSTER = KafkaCluster("a:9092,b:9092", {"security.protocol": "SASL_SSL"})


def test_a_record_is_an_event_with_its_place_key_headers_and_time() -> None:
    event = read_record(Format(), b"ann", b'{"text": "hi"}', {"trace": b"t1", "bin": b"\xff"}, PLACE)
    assert event == Event(
        raw=b'{"text": "hi"}',
        fields={
            "text": "hi",
            "kafka": {**PLACE, "key": "ann", "headers": {"trace": "t1", "bin": "base64:/w=="}},
        },
        time_ms=PLACE["time_ms"],
        position="in/3@17",
        record_key=b"ann",
        headers={"trace": b"t1", "bin": b"\xff"},
        record_ms=PLACE["time_ms"],
    )
    assert decode(encode(event)) == event


def test_own_field_named_kafka_is_kept() -> None:
    event = read_record(Format(), None, b'{"kafka": {"key": "mine"}}', {}, PLACE)
    assert isinstance(event, Event)
    assert event.fields == {"kafka": {**PLACE, "key": None, "headers": {}, "own": {"key": "mine"}}}


def test_a_header_without_a_value_is_not_an_empty_one() -> None:
    headers = {"null": None, "empty": b""}
    event = read_record(Format(), b"", b"{}", headers, PLACE)
    assert isinstance(event, Event)
    assert (event.headers, event.record_key) == (headers, b"")
    assert event.fields["kafka"] == {**PLACE, "key": "", "headers": {"null": None, "empty": ""}}
    assert decode(encode(event)) == event


@given(st.sets(st.none() | st.binary(max_size=9) | st.text(max_size=9).map(str.encode), min_size=2))
@example({b"\xff", b"base64:/w==", None, b"None", b""})
@example({(n).to_bytes(8, "big") for n in range(300)})
def test_different_keys_have_different_texts(keys: set[bytes | None]) -> None:
    texts = {key: text_of(key) for key in keys}
    assert len(set(texts.values())) == len(keys)
    assert all((text is None) == (key is None) for key, text in texts.items())


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("é".encode(), "é"),
        (b"\xff", "base64:/w=="),
        ((1).to_bytes(8, "big"), "base64:AAAAAAAAAAE="),
        (b"base64:x", "base64:YmFzZTY0Ong="),
    ],
)
def test_a_key_that_is_no_text_is_base64(key: bytes, text: str) -> None:
    assert text_of(key) == text


def test_event_time_field_wins_over_the_records_time() -> None:
    event = read_record(Format(time=EventTime("at", "unix_ms")), None, b'{"at": 5}', {}, PLACE)
    assert (event.time_ms, event.record_key, event.record_ms) == (5, None, PLACE["time_ms"])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "tombstone"),
        (b"\xff\xfe", "not UTF-8: byte 1"),
        (b"[]", "object"),
        (b'{"text": "' + b"x" * 10_000_000 + b'"}', "the limit is 1048576"),
    ],
)
def test_invalid_record_is_a_dead_letter_with_bytes_key_and_headers(value: bytes | None, words: str) -> None:
    letter = read_record(Format(), b"k", value, {"trace": b"t1"}, PLACE)
    assert isinstance(letter, DeadLetter)
    assert words in letter.detail
    cause = "malformed_record" if value else "tombstone"
    assert (letter.raw, letter.cause, letter.position) == (value or b"", cause, "in/3@17")
    assert (letter.record_key, letter.headers, letter.time_ms) == (b"k", {"trace": b"t1"}, PLACE["time_ms"])
    assert decode(encode(letter)) == letter


def test_results_and_dead_letters_carry_key_headers_and_the_requests_id() -> None:
    result = Result(
        id="in/3@17",
        key="ann",
        fields={"text": "hi"},
        answer={"team": "billing"},
        usage=Usage(1, 2),
        attempts=1,
        read_ms=5,
        elapsed_s=0.1,
        called_s=0.1,
        record_key=b"\xffann",
        headers={"trace": b"t1"},
    )
    key, value, headers = record_of(result)
    assert (key, headers) == (b"\xffann", {"trace": b"t1", "forebay-id": b"in/3@17"})
    line = orjson.loads(value)
    assert (line["answer"], line["fields"]) == ({"team": "billing"}, {"text": "hi"})
    assert not {"record_key", "headers"} & line.keys()
    letter = DeadLetter(raw=b"x", cause="timeout", detail="d", headers={"trace": b"t1"})
    key, value, headers = record_of(letter)
    assert (key, headers) == (None, {"trace": b"t1", "forebay-cause": b"timeout"})
    assert orjson.loads(value)["input"] == "x"
    _, _, headers = record_of(replace(letter, position="in/3@17"))
    assert headers["forebay-id"] == b"in/3@17"


def test_a_result_that_is_too_large_is_a_dead_letter_with_its_record() -> None:
    result = Result(
        "in/3@17", "ann", {"text": "hi"}, "yes", Usage(1, 2), 2, 5, 0.1, 0.1,
        time_ms=7, position="in/3@17", record_key=b"k", headers={"trace": b"t1"}, raw=b'{"text": "hi"}',
        record_ms=9,
    )  # fmt: skip
    letter = OutputWriter(40_000).refused(result, "too large")
    assert letter == DeadLetter(
        b'{"text": "hi"}', "too_large_for_sink", "too large", 2, "in/3@17", "ann", 7, "in/3@17", b"k",
        {"trace": b"t1"}, 9,
    )  # fmt: skip
    again = read_letter(Format(), dead_letter_json(letter).encode(), "letters/0@1")
    place = {**PLACE, "time_ms": 9}
    first = read_record(Format(), b"k", b'{"text": "hi"}', {"trace": b"t1"}, place, position="in/3@17")
    assert again == replace(first, time_ms=7)


class Moment:
    def toEpochMilli(self) -> int:
        return 9


def test_line_that_is_not_a_dead_letter_keeps_key_and_headers() -> None:
    reader = ReadRecord(TopicSource(CLUSTER, topics=("letters",), group="g", letters=True))
    row = (b"k", b"no letter", {"trace": b"t1"}, Moment(), "letters", 0, 5)
    letter = decode(reader.map(row))
    assert letter.detail.startswith("not a dead letter: JSONDecodeError")
    assert replace(letter, detail="") == DeadLetter(
        b"no letter", "malformed_dead_letter", "", time_ms=9, position="letters/0@5", record_key=b"k",
        headers={"trace": b"t1"}, record_ms=9,
    )  # fmt: skip


def test_the_connectors_options_of_a_source() -> None:
    options = source_options(TopicSource(CLUSTER, topics=("a", "b"), group="g"))
    assert options["topic"] == "a;b"
    assert options["scan.startup.mode"] == "group-offsets"
    assert options["properties.auto.offset.reset"] == "earliest"
    assert options["properties.security.protocol"] == "SASL_SSL"
    options = source_options(TopicSource(CLUSTER, pattern="a-.*", start=1_700_000_000_000, until_latest=True))
    assert options["topic-pattern"] == "a-.*"
    assert options["scan.startup.timestamp-millis"] == "1700000000000"
    assert options["scan.bounded.mode"] == "latest-offset"
    assert "properties.group.id" not in options


@pytest.mark.parametrize("wrong", [{}, {"topics": ("a",), "pattern": "b", "group": "g"}, {"topics": ("a",)}])
def test_contradicting_source_is_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError, match="Kafka source"):
        TopicSource(CLUSTER, **wrong)  # type: ignore[arg-type]


def test_the_connectors_options_of_a_sink() -> None:
    options = sink_options(TopicSink(CLUSTER, "out", transactions="p", transaction_timeout_s=60))
    assert options["sink.delivery-guarantee"] == "exactly-once"
    assert options["sink.transactional-id-prefix"] == "p"
    assert options["properties.transaction.timeout.ms"] == "60000"
    assert "sink.transactional-id-prefix" not in sink_options(TopicSink(CLUSTER, "out", "at-least-once"))
    with pytest.raises(SettingError, match="prefix"):
        TopicSink(CLUSTER, "out")


def test_secrets_are_references_that_kafkas_client_resolves() -> None:
    cluster = KafkaCluster(
        "a:9092",
        secrets={
            "sasl.jaas.config": SecretRef(env="KAFKA_JAAS"),
            "ssl.keystore.password": SecretRef(file="/run/secrets/keystore"),
        },
    )
    properties = cluster.client_properties()
    assert properties["sasl.jaas.config"] == "${env:KAFKA_JAAS}"
    assert properties["ssl.keystore.password"] == "${directory:/run/secrets:keystore}"
    assert properties["config.providers"] == "env,directory"
    with pytest.raises(SettingError):
        KafkaCluster("a:9092", secrets={"x": SecretRef()}).client_properties()
