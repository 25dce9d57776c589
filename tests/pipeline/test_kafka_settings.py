"""Kafka in pipeline files: what is refused, and what becomes of it on a real node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.connectors.kafka.cluster import TopicStart
from forebay.errors import PipelineFailed, SettingError
from forebay.pipeline.load import parse_spec
from forebay.settings import SecretRef

SERVERS = "127.0.0.1:9092"


def document(**source: Any) -> dict[str, Any]:
    return {
        "name": "p",
        "source": {"type": "kafka", "bootstrap": SERVERS, "topics": ["in"], **source},
        "prompt": "{{ text }}",
        "sink": {"type": "kafka", "bootstrap": SERVERS, "topic": "out"},
    }


def test_defaults() -> None:
    spec = parse_spec(document())
    assert spec.source.group_of(spec.name) == "forebay-p"
    assert (spec.source.start, spec.source.format, spec.sink.guarantee) == (
        "committed",
        "jsonl",
        "exactly-once",
    )
    assert spec.directories() == {"dead_letters.path": "p-dead-letters"}
    assert list(spec.topics()) == ["sink"]


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("earliest", "earliest"),
        ("2026-01-31T12:00:00Z", 1769860800000),
        ("2026-01-31T13:00:00+01:00", 1769860800000),
        ("2026-01-31T12:00:00", 1769860800000),
    ],
)
def test_where_to_start(start: str, found: object) -> None:
    assert parse_spec(document(start=start)).source.start == found


def test_lines_of_text_have_fields_and_times_by_their_pattern() -> None:
    lines = {"format": "text", "line_pattern": r"(?s)(?P<at>\S+) (?P<text>.*)"}
    spec = parse_spec(document(**lines, time="at"))
    event = spec.source.topics_of(spec).format.read(b"2026-01-31T12:00:00Z two\nlines")
    assert (event.fields["text"], event.time_ms) == ("two\nlines", 1769860800000)
    for source, text in (
        ({"format": "text", "time": "at"}, "name a part of a line with it: line_pattern: "),
        ({"line_pattern": lines["line_pattern"]}, "expected no 'line_pattern' with format: jsonl"),
        ({"format": "text", "line_pattern": "no group"}, "expected a regular expression of RE2"),
    ):
        with pytest.raises(SettingError, match=text):
            parse_spec(document(**source))


def test_reader_without_its_offset_fails_unless_nobody_restarts_it() -> None:
    def reset(*, watched: bool, **source: Any) -> str:
        spec = parse_spec(document(**source))
        return str(spec.source.topics_of(spec, TopicStart(watched=watched)).reset)

    assert [reset(watched=watched) for watched in (True, False)] == ["none", "none"]
    found = [reset(watched=watched, on_gap="continue") for watched in (True, False)]
    assert found == ["none", "earliest"]


def test_secrets_are_named_and_properties_are_texts() -> None:
    cluster = parse_spec(
        document(
            properties={"security.protocol": "SASL_SSL", "max.poll.records": 100, "allow.it": True},
            secrets={"sasl.jaas.config": {"env": "JAAS"}},
        )
    ).source.cluster()
    assert cluster.properties == {
        "security.protocol": "SASL_SSL",
        "max.poll.records": "100",
        "allow.it": "true",
    }
    assert cluster.secrets == {"sasl.jaas.config": SecretRef(env="JAAS")}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"bootstrap": "broker"}, "HOST:PORT"),
        ({"bootstrap": "a:1,b"}, "HOST:PORT"),
        ({"topics": []}, "either 'topics' or 'pattern'"),
        ({"pattern": "x"}, "either 'topics' or 'pattern'"),
        ({"topics": [], "pattern": "("}, "regular expression"),
        ({"topics": ["a b"]}, "name of a topic"),
        ({"limit": 5}, "until_latest"),
        ({"on_gap": "skip"}, "source.on_gap"),
        ({"dead_letters": "yes"}, "source.dead_letters"),
        (
            {"type": "dead_letters", "topics": ["letters"]},
            "dead letters in a topic need 'type: kafka' with 'dead_letters: true'",
        ),
        ({"start": "yesterday"}, "2026-01-31T12:00:00Z"),
        ({"properties": {"group.id": "x"}}, "use group"),
        ({"properties": {"bootstrap.servers": "x"}}, "use bootstrap"),
        ({"properties": {"sasl.jaas.config": "the secret"}}, "under 'secrets'"),
        ({"properties": {"ssl.key.password": "the secret"}}, "under 'secrets'"),
        ({"secrets": {"ssl.key.password": "the secret"}}, "found the secret itself"),
        ({"format": "registry"}, "'format: registry' and 'registry' together"),
        ({"registry": {"url": "http://r:1"}}, "'format: registry' and 'registry' together"),
        ({"format": "registry", "registry": {"url": "http://a:the secret@r:1"}}, "expected a URL"),
        (
            {"format": "registry", "registry": {"url": "http://r:1", "auth": "the secret"}},
            "found the secret itself",
        ),
    ],
)
def test_mistakes_name_the_key_and_the_fix_but_no_secret(source: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as raised:
        parse_spec(document(**source))
    assert words in str(raised.value)
    assert "source" in str(raised.value)
    assert "the secret'" not in str(raised.value)
    assert "'the secret" not in str(raised.value)


def test_missing_secret_or_trailing_line_break_stops_the_start(tmp_path: Path) -> None:
    from forebay.pipeline.preflight import check_secrets

    def check(**source: Any) -> None:
        check_secrets(parse_spec(document(**source), base=tmp_path), here=True)

    (tmp_path / "password").write_text("hush-hush\n")
    (tmp_path / "pair").write_text("ann:hush-hush\n")
    for secrets, words in (
        (
            {"sasl.jaas.config": {"env": "NO_SUCH_VARIABLE"}},
            "source.secrets.sasl.jaas.config: .*NO_SUCH_VARIABLE",
        ),
        ({"ssl.key.password": {"file": "nowhere"}}, "source.secrets.ssl.key.password: .*nowhere"),
        ({"ssl.key.password": {"file": "password"}}, "ends with a line break"),
    ):
        with pytest.raises(SettingError, match=words) as text:
            check(secrets=secrets)
        assert "hush" not in str(text.value)
    (tmp_path / "password").write_text("hush-hush")
    check(secrets={"ssl.key.password": {"file": "password"}})
    registry = {"url": "http://127.0.0.1:9"}
    check(format="registry", registry={**registry, "auth": {"file": "pair"}})
    with pytest.raises(SettingError, match=r"source.registry.auth: .*USER:PASSWORD"):
        check(format="registry", registry={**registry, "auth": {"file": "password"}})


def test_with_event_time_one_reader_has_the_clock_of_all_partitions() -> None:

    for event_time, parallelism in (({"out_of_orderness_s": 1.0}, 1), (None, None)):
        spec = parse_spec({**document(), "event_time": event_time, "parallelism": 2})
        assert spec.source.topics_of(spec).parallelism == parallelism


def test_missing_connector_is_reported_before_the_start(tmp_path: Path) -> None:
    from contextlib import nullcontext

    from forebay.pipeline.plan import Plan
    from forebay.pipeline.run import run_pipeline
    from forebay.settings import Settings

    spec = parse_spec(document(), base=tmp_path)
    with pytest.raises(SettingError, match="run: forebay connectors install kafka"):
        run_pipeline(Plan(spec, Settings(tmp_path, Path())), nullcontext(["http://127.0.0.1:9"]))


@pytest.mark.parametrize("source", [{"topics": ["in", "out"]}, {"topics": [], "pattern": "ou."}])
@pytest.mark.parametrize("key", ["sink", "dead_letters"])
def test_output_topic_must_not_be_an_input_topic(source: dict[str, Any], key: str) -> None:
    base = {**document(**source), "sink": {"type": "jsonl", "path": "out"}}
    servers = f"other:1, {SERVERS.split(',', maxsplit=1)[0]}"
    sink = {"type": "kafka", "bootstrap": servers, "topic": "out"}
    with pytest.raises(SettingError, match=f"{key}.topic: expected a topic apart from those of the source"):
        parse_spec({**base, key: sink})
    parse_spec({**base, key: {**sink, "topic": "outside"}})
    parse_spec({**base, key: {**sink, "bootstrap": "elsewhere:9092"}})


class Answers:
    """A Kafka that returns what a test sets, after a time of being away."""

    def __init__(
        self,
        away: int = 0,
        topics: tuple[str, ...] = ("in", "out"),
        members: int = 0,
        record_bytes: int | None = 1_048_588,
    ) -> None:
        self.away = away
        self._record_bytes = record_bytes
        self.clients = 0
        self._topics = frozenset(topics)
        self._members = members

    def topics(self) -> frozenset[str]:
        from forebay.connectors.kafka.admin import KafkaAway

        if self.away:
            self.away -= 1
            raise KafkaAway("Kafka at a:1 does not answer")
        return self._topics

    def members(self, group: str) -> int:
        return self._members

    def longest_transaction_ms(self) -> int:
        return 600_000

    def longest_record_bytes(self, topic: str) -> int | None:
        return self._record_bytes

    def cluster_id(self) -> str:
        return "A"


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, float]]]:
    """Asks a scripted Kafka; gives what was said while it waited."""
    from contextlib import contextmanager

    from tests.harness.clock import ManualClock

    from forebay.connectors.kafka import admin as asked
    from forebay.pipeline.kafka import start as kafka_start

    def run(answers: Answers, **changes: Any) -> list[tuple[str, float]]:
        @contextmanager
        def admin(cluster: object) -> Any:
            answers.clients += 1
            yield answers

        monkeypatch.setattr(asked, "kafka_admin", admin)
        clock, text = ManualClock(), []
        spec = parse_spec({**document(), **changes})
        read = kafka_start.await_brokers(
            spec, lambda words, waited_s: text.append((words, waited_s)), clock=clock, sleep=clock.advance
        )
        assert set(read.values()) == {"A"}
        assert {"source"} <= set(read) <= {"source", "sink", "dead_letters"}
        return text

    return run


SINK = {"type": "kafka", "bootstrap": SERVERS, "topic": "out", "transaction_timeout_s": 600.0}


def test_one_client_queries_each_kafka(ask: Callable[..., Any]) -> None:
    one, two = Answers(), Answers(topics=("in", "out", "letters"))
    ask(one, sink=SINK, dead_letters={**SINK, "topic": "out"})
    assert one.clients == 1
    ask(two, sink=SINK, dead_letters={**SINK, "topic": "letters", "bootstrap": "elsewhere:9092"})
    assert two.clients == 2


def test_absent_kafka_is_waited_for_until_a_timeout(ask: Callable[..., Any]) -> None:
    assert ask(Answers(), sink=SINK) == []
    assert [waited_s for _, waited_s in ask(Answers(away=3), sink=SINK)] == [0.0, 1.0, 2.0]
    with pytest.raises(PipelineFailed, match="does not answer; gave up after 120 s"):
        ask(Answers(away=10_000), sink=SINK)


@pytest.mark.parametrize(
    ("answers", "sink", "words"),
    [
        (Answers(topics=("out",)), SINK, "source.topics: Kafka has no topic 'in'"),
        (Answers(topics=("in",)), SINK, "sink.topic: Kafka has no topic 'out'"),
        (Answers(members=2), SINK, "source.group: other consumers use 'forebay-p' now .2."),
        (Answers(), {**SINK, "transaction_timeout_s": 601.0}, "expected at most 600.*found 601"),
        (
            Answers(record_bytes=100_000),
            SINK,
            r"^sink\.properties: expected max\.request\.size of at most 100000, the max\.message\.bytes of "
            r"topic 'out', found 1048576, the default; set sink\.properties: {max\.request\.size: 100000}",
        ),
        (
            Answers(),
            {**SINK, "properties": {"max.request.size": 8_000_000}},
            "expected max.request.size of at most 1048588, .* found 8000000; set",
        ),
    ],
)
def test_missing_kafka_permissions_and_limits_are_reported_first(
    ask: Callable[..., Any], answers: Answers, sink: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        ask(answers, sink=sink)


def test_topic_with_an_unknown_or_sufficient_limit_is_accepted(ask: Callable[..., Any]) -> None:
    ask(Answers(record_bytes=None), sink=SINK)
    ask(Answers(record_bytes=50_000), sink={**SINK, "properties": {"max.request.size": 50_000}})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max.request.size", "8 MB", "expected a whole number of bytes, found '8 MB'"),
        ("max.request.size", 1000, "expected at least 8192 bytes, .*; found 1000"),
        ("max.request.size", True, "expected a whole number of bytes, found 'True'"),
        ("buffer.memory", 1.5, "expected a whole number of bytes, found '1.5'"),
    ],
)
def test_invalid_producer_limit(name: str, value: object, words: str) -> None:
    sink = {**SINK, "properties": {name: value}}
    with pytest.raises(SettingError, match=rf"sink.*properties\.{name}: {words}"):
        parse_spec({**document(), "sink": sink})


def test_at_least_once_needs_no_transaction(ask: Callable[..., Any]) -> None:
    ask(Answers(), sink={**SINK, "guarantee": "at-least-once", "transaction_timeout_s": 9999.0})
