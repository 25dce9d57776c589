"""Messages reach a session through the source, and their turns come from the committed results."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import TopicReader
from tests.cli.test_watch import commit
from tests.harness.clock import ManualClock

from forebay.clients.s3.client import StoreAway, StoreRefused
from forebay.errors import ForebayError, PipelineFailed, SettingError
from forebay.pipeline.chat import FILE, Conversation, await_turn, engine_trouble, way_in
from forebay.pipeline.load import parse_spec
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import LocalStore, RunState, write_state
from forebay.settings import Settings, load_settings
from forebay.testing.replica import ReplicaThread

NOW_MS = 1_700_000_000_123
JSONL = {"type": "jsonl", "path": "in", "follow": True}
KAFKA = {"type": "kafka", "bootstrap": "h:1", "topics": ["chat"]}


def sessions(folder: Path, **changes: Any) -> PipelineSpec:
    document = {
        "name": "chat",
        "source": JSONL,
        "application": {"type": "sessions"},
        "key": "{{ user }}",
        "sink": {"type": "jsonl", "path": "out"},
        **changes,
    }
    (folder / "in").mkdir(exist_ok=True)
    return parse_spec(document, base=folder)


def turn(number: int, text: str, *, key: str = "ann", mark: str = "m") -> dict[str, Any]:
    answer = {"turn": number, "text": text, "cut": False, "folds": 0}
    fields = {"user": key, "text": f"question {number}", "forebay_chat": mark}
    return {"id": f"t-{number}", "key": key, "fields": fields, "answer": answer, "usage": {}}


def fields_of(spec: PipelineSpec, key: str = "ann", text: str = "hello") -> Any:
    return orjson.loads(Conversation(spec, key).record(text, "mark", NOW_MS))


def test_written_record_has_the_fields_that_the_pipeline_reads(tmp_path: Path) -> None:
    spec = sessions(
        tmp_path,
        source={**JSONL, "time": "at.ms", "time_format": "unix_ms"},
        application={"type": "sessions", "text": "said.text"},
        key="{{ event.who.name }}",
        id="{{ number }}",
    )
    assert fields_of(spec, "Ann Ö", 'a "quote"\nand a line') == {
        "at": {"ms": NOW_MS},
        "said": {"text": 'a "quote"\nand a line'},
        "who": {"name": "Ann Ö"},
        "number": "mark",
        "forebay_chat": "mark",
    }


@pytest.mark.parametrize("key", ["{{ user }}-{{ room }}", "{{ user | upper }}", "{{ user[0] }}"])
def test_unwritable_key_is_rejected(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingError, match="expected a template of one field"):
        fields_of(sessions(tmp_path, key=key))


@pytest.mark.parametrize("key", ["", " ann"])
def test_key_that_no_record_can_have_is_rejected(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingError, match=r"\bkey\b"):
        fields_of(sessions(tmp_path), key)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the message is empty"),
        ("\n ", "the message is empty"),
        ("x" * 200, "the message: expected a text in a record of at most 150 bytes"),
        ("\udcff", "the message: expected UTF-8, found '\\\\udcff'"),
    ],
)
def test_unwritable_messages_are_rejected(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        fields_of(sessions(tmp_path, source={**JSONL, "max_record_bytes": 150}), text=text)


TIMED = {**JSONL, "time": "meta.at"}
SAME = {"type": "sessions", "text": "user"}


def test_fields_of_one_object_are_combined(tmp_path: Path) -> None:
    found = fields_of(sessions(tmp_path, source=TIMED, id="{{ meta.id }}", key="{{ meta.user }}"))
    assert found["meta"] == {"id": "mark", "at": "2023-11-14T22:13:20.123000+00:00", "user": "ann"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": TIMED, "id": "{{ meta }}"}, "meta.at is a field of meta, which has a value of its own"),
        ({"application": SAME}, "it would have the wrong application.text"),
        ({"id": "{{ user }}"}, "it would have the wrong id"),
        ({"id": "{{ number + 1 }}"}, "it would become a dead letter"),
        ({"priority": "{{ level }}"}, "it would become a dead letter"),
        ({"priority": "{{ text }}"}, "it would have the wrong priority"),
        ({"key": "{{ forebay_chat }}"}, "it would have the wrong forebay_chat"),
        ({"source": {**JSONL, "time": "text"}}, "it would become a dead letter .*time field 'text'"),
    ],
)
def test_ambiguous_values_are_rejected(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        fields_of(sessions(tmp_path, **changes))


def test_only_the_key_of_a_topics_record_can_be_written(tmp_path: Path) -> None:
    assert "kafka" not in fields_of(sessions(tmp_path, source=KAFKA, key="{{ kafka.key }}"))
    assert "kafka" not in fields_of(sessions(tmp_path, source=KAFKA, id="{{ kafka.offset }}"))
    with pytest.raises(SettingError, match="the wrong id"):
        fields_of(sessions(tmp_path, source=KAFKA, id="{{ kafka.key }}"))
    for name in ("topic", "headers.user"):
        with pytest.raises(SettingError, match="expected a template of one field of the record"):
            fields_of(sessions(tmp_path, source=KAFKA, key=f"{{{{ kafka.{name} }}}}"))


def test_messages_are_whole_lines_even_after_a_cut_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / FILE
    file.write_bytes(b'{"a": 1}\n{"cut')
    with way_in(sessions(tmp_path), "ann", Settings(home=tmp_path, python=Path())) as send:
        send(b'{"b": 2}')
        send(b'{"c": 3}')
    assert file.read_bytes().splitlines() == [b'{"a": 1}', b'{"cut', b'{"b": 2}', b'{"c": 3}']


def test_a_message_that_is_written_in_part_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.pipeline.chat.os.write", lambda _descriptor, _line: 3)
    way = way_in(sessions(tmp_path), "ann", Settings(home=tmp_path, python=Path()))
    with way as send, pytest.raises(PipelineFailed, match="only 3 of 9 bytes"):
        send(b'{"b": 2}')


@pytest.mark.flink
def test_messages_to_a_topic_have_their_key(
    tmp_path: Path, flink_logs: Path, kafka_jar: Path, node: Any, topic: Callable[..., str]
) -> None:
    name = topic(partitions=4)
    spec = sessions(tmp_path, source={**KAFKA, "bootstrap": node.bootstrap, "topics": [name]})
    with way_in(spec, "Ö", load_settings()) as send:
        for number in range(9):
            send(b"%d" % number)
    found = [(each.key(), each.value()) for each in TopicReader(node.bootstrap, name).messages()]
    # All in one partition, so in order.
    assert found == [("Ö".encode(), b"%d" % number) for number in range(9)]


@pytest.mark.parametrize(
    "source",
    [
        {"type": "generator"},
        {**JSONL, "follow": False},
        {**JSONL, "payload": "after"},
        {**JSONL, "encoding": "utf-16"},
        {**KAFKA, "until_latest": True},
        {**KAFKA, "topics": ["a", "b"]},
        {**KAFKA, "format": "text"},
        {"type": "csv", "path": "in", "follow": True},
    ],
)
def test_sources_that_take_no_message_are_named(tmp_path: Path, source: dict[str, Any]) -> None:
    spec = sessions(tmp_path, source=source)
    way = way_in(spec, "ann", Settings(home=tmp_path, python=Path()))
    with pytest.raises(SettingError, match="a message cannot be added to the source"), way:
        pass


def test_chat_needs_a_session_pipeline_with_readable_results(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="expected a pipeline with the application sessions, found none"):
        Conversation(sessions(tmp_path, application=None, prompt="{{ text }}"), "ann")
    with pytest.raises(SettingError, match="the turns go to standard output"):
        Conversation(sessions(tmp_path, sink={"type": "stdout"}), "ann")


def test_turns_of_a_key_and_other_keys_are_found(tmp_path: Path) -> None:
    spec = sessions(tmp_path)
    commit(spec, 0, turn(1, "one"), turn(1, "not yours", key="bob"), turn(2, "two"))
    conversation = Conversation(spec, "ann")
    (talk,) = conversation.talks()
    assert [answer for _, _, answer in talk.turns] == ["one", "two"]
    assert list(conversation.keys) == ["bob"]
    commit(spec, 1, turn(3, "three", mark="mine"))
    found = conversation.turn("mine")
    assert found is not None
    assert found["answer"]["text"] == "three"
    assert conversation.turn("mine") is None


def letter(mark: str, key: str | None = None) -> dict[str, Any]:
    given = orjson.dumps({"text": "hello", "forebay_chat": mark}).decode()
    return {"cause": "no_key", "detail": "user is missing", "id": "t", "key": key, "input": given}


def test_the_turn_is_found_by_the_marked_record_only(tmp_path: Path) -> None:
    """The end of the session before it has the same id."""
    spec = sessions(tmp_path, id="{{ number }}")
    ended = {"ended": "idle", "turns": 2, "summary": ""}
    before = {**turn(0, ""), "id": "mine", "fields": {"session": "ann"}, "answer": ended}
    commit(
        spec,
        0,
        before,
        {**before, "fields": {"forebay_chat": "mine"}},
        turn(1, "speaks of mine", mark="other"),
        {**turn(1, "new", mark="mine"), "id": "mine/2"},
    )
    found = Conversation(spec, "ann").turn("mine")
    assert found is not None
    assert found["answer"]["text"] == "new"


def test_a_dead_letter_without_a_key_is_found(tmp_path: Path) -> None:
    spec = sessions(tmp_path)
    folder = Path(spec.directories()["dead_letters.path"])
    folder.mkdir()
    (folder / "part-x-0.jsonl").write_bytes(orjson.dumps(letter("mine")) + b"\n")
    found = Conversation(spec, "ann").turn("mine")
    assert found is not None
    assert found["cause"] == "no_key"


def test_results_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-x-0.jsonl").mkdir()
    with pytest.raises(PipelineFailed, match=r"the turns cannot be read: .*part-x-0.jsonl"):
        Conversation(sessions(tmp_path), "ann").talks()


class Wait:
    """A wait for a turn, whose clock the test moves."""

    def __init__(self, spec: PipelineSpec, **changes: Any) -> None:
        self.conversation, self.clock = Conversation(spec, "ann"), ManualClock()
        self.output: list[str] = []
        self._given = {
            "running": lambda: True,
            "trouble": lambda: "",
            "report": self.output.append,
            **changes,
        }

    def answer(self, timeout_s: float = 600.0) -> str:
        found = await_turn(
            self.conversation,
            "mine",
            every_s=1.0,
            report_s=10.0,
            timeout_s=timeout_s,
            monotonic_s=self.clock.monotonic_s,
            sleep=self.clock.advance,
            **self._given,
        )
        return str(found["answer"]["text"])


def test_the_wait_for_a_turn_is_reported(tmp_path: Path) -> None:
    spec = sessions(tmp_path)
    states = iter(("", "the engine does not answer"))

    def trouble() -> str:
        if found := next(states):
            commit(spec, 0, turn(1, "late", mark="mine"))
        return found

    wait = Wait(spec, trouble=trouble)
    assert wait.answer() == "late"
    assert wait.output == [
        "no answer for 10 s; the pipeline runs",
        "no answer for 20 s; the engine does not answer",
    ]


def test_the_wait_ends_at_its_timeout(tmp_path: Path) -> None:
    wait = Wait(sessions(tmp_path))
    with pytest.raises(PipelineFailed, match=r"no answer for 4 s; .*; the message is in the source"):
        wait.answer(timeout_s=3.6)
    assert wait.clock.monotonic_s() == ManualClock().monotonic_s() + 3.6


@pytest.mark.parametrize("error", [StoreAway("s3 is away"), StoreRefused("s3 refuses"), PipelineFailed("s3")])
@pytest.mark.parametrize("place", ["sink", "lock"])
def test_failing_stores_do_not_end_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ForebayError, place: str
) -> None:
    spec = sessions(tmp_path)

    def fail(*_: Any) -> Any:
        raise error

    wait = Wait(spec, **({"running": fail} if place == "lock" else {}))
    if place == "sink":
        monkeypatch.setattr(wait.conversation, "turn", fail)
    with pytest.raises(PipelineFailed, match=rf"no answer for 15 s; {error}; the message is in the source"):
        wait.answer(timeout_s=15.0)
    assert wait.output == [f"no answer for 10 s; {error}"]


def test_the_last_turn_of_a_stopped_run_is_found(tmp_path: Path) -> None:
    spec = sessions(tmp_path)

    def running() -> bool:
        commit(spec, 0, turn(1, "at the end", mark="mine"))
        return False

    assert Wait(spec, running=running).answer() == "at the end"
    (tmp_path / "other").mkdir()
    with pytest.raises(PipelineFailed, match="the pipeline has stopped; the message is in the source"):
        Wait(sessions(tmp_path / "other"), running=lambda: False).answer()


@pytest.fixture
def replica() -> Iterator[ReplicaThread]:
    with ReplicaThread() as running:
        yield running


def test_unreachable_engine_is_named(tmp_path: Path, replica: ReplicaThread) -> None:
    spec, store = sessions(tmp_path), LocalStore(tmp_path)
    assert engine_trouble(spec, store) == ""
    write_state(tmp_path, RunState(settings={"engine": {"url": ["http://127.0.0.1:1"]}}))
    assert "the engine does not answer: " in engine_trouble(spec, store)
    assert "127.0.0.1:1" in engine_trouble(spec, store)
    write_state(tmp_path, RunState(settings={"engine": {"url": ["http://127.0.0.1:1", replica.url]}}))
    assert engine_trouble(spec, store) == ""


def test_an_engine_that_cannot_be_checked_is_named(tmp_path: Path) -> None:
    spec = sessions(tmp_path, engine={"url": "http://127.0.0.1:1", "api_key": {"env": "FOREBAY_NO_SUCH_KEY"}})
    assert "the engine cannot be checked: " in engine_trouble(spec, LocalStore(tmp_path))
    (tmp_path / "run.json").write_text("{")
    assert "run.json cannot be read" in engine_trouble(sessions(tmp_path), LocalStore(tmp_path))


def test_the_check_of_the_engine_is_bounded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = [f"http://127.0.0.1:{silent.getsockname()[1]}"] * 3
        write_state(tmp_path, RunState(settings={"engine": {"url": urls}}))
        text = engine_trouble(sessions(tmp_path), LocalStore(tmp_path), most_s=0.05)
    assert text.startswith(f"the engine does not answer within 0.05 s: {urls[0]}")
