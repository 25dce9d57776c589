"""Messages reach a session through the source, and their turns come from the committed results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import TopicReader
from tests.cli.test_watch import commit
from tests.harness.clock import ManualClock

from forebay.errors import PipelineFailed, SettingError
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


def test_a_record_has_what_the_pipeline_reads(tmp_path: Path) -> None:
    spec = sessions(
        tmp_path,
        source={**JSONL, "time": "at.ms", "time_format": "unix_ms"},
        application={"type": "sessions", "text": "said.text"},
        key="{{ event.who.name }}",
        id="{{ number }}",
    )
    assert fields_of(spec, "Ann Ö", 'a "quote"\nand a line\ud800') == {
        "at": {"ms": NOW_MS},
        "said": {"text": 'a "quote"\nand a line?'},
        "who": {"name": "Ann Ö"},
        "number": "mark",
        "forebay_chat": "mark",
    }


@pytest.mark.parametrize("key", ["{{ user }}-{{ room }}", "{{ user | upper }}", "{{ user[0] }}"])
def test_a_key_that_cannot_be_written_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingError, match="expected a template of one field"):
        fields_of(sessions(tmp_path, key=key))


@pytest.mark.parametrize("key", ["", " ann"])
def test_a_key_that_no_record_has_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingError, match="key: "):
        fields_of(sessions(tmp_path), key)


@pytest.mark.parametrize("text", ["", "\n ", "x" * 200])
def test_empty_and_too_large_messages_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingError, match="the message: expected a text in a record of at most 150 bytes"):
        fields_of(sessions(tmp_path, source={**JSONL, "max_record_bytes": 150}), text=text)


def test_messages_are_whole_lines_also_after_a_cut_one(tmp_path: Path) -> None:
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
    ],
)
def test_sources_that_take_no_message_are_named(tmp_path: Path, source: dict[str, Any]) -> None:
    spec = sessions(tmp_path, source=source)
    way = way_in(spec, "ann", Settings(home=tmp_path, python=Path()))
    with pytest.raises(SettingError, match="a message cannot be added to the source"), way:
        pass


def test_only_sessions_whose_results_can_be_read_are_talked_to(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="expected a pipeline with the application sessions, found none"):
        Conversation(sessions(tmp_path, application=None, prompt="{{ text }}"), "ann")
    topic = {"type": "kafka", "bootstrap": "h:1", "topic": "answers"}
    with pytest.raises(SettingError, match="the turns go to topic answers"):
        Conversation(sessions(tmp_path, sink=topic), "ann")


def test_the_turns_of_a_key_and_the_other_keys_are_found(tmp_path: Path) -> None:
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


def test_results_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-x-0.jsonl").mkdir()
    with pytest.raises(PipelineFailed, match=r"the turns cannot be read: .*part-x-0.jsonl"):
        Conversation(sessions(tmp_path), "ann").talks()


def test_the_wait_for_a_turn_is_reported(tmp_path: Path) -> None:
    spec, clock = sessions(tmp_path), ManualClock()
    waited: list[float] = []

    def report(waited_s: float) -> None:
        waited.append(waited_s)
        if len(waited) == 2:
            commit(spec, 0, turn(1, "late", mark="mine"))

    found = await_turn(
        Conversation(spec, "ann"),
        "mine",
        every_s=1.0,
        report_s=10.0,
        report=report,
        monotonic_s=clock.monotonic_s,
        sleep=clock.advance,
    )
    assert (found["answer"]["text"], waited) == ("late", [10.0, 20.0])


@pytest.fixture
def replica() -> Iterator[ReplicaThread]:
    with ReplicaThread() as running:
        yield running


def test_an_engine_that_is_away_is_named(tmp_path: Path, replica: ReplicaThread) -> None:
    spec, store = sessions(tmp_path), LocalStore(tmp_path)
    assert engine_trouble(spec, store) == ""
    write_state(tmp_path, RunState(settings={"engine": {"url": ["http://127.0.0.1:1"]}}))
    assert "the engine does not answer: " in engine_trouble(spec, store)
    assert "127.0.0.1:1" in engine_trouble(spec, store)
    write_state(tmp_path, RunState(settings={"engine": {"url": ["http://127.0.0.1:1", replica.url]}}))
    assert engine_trouble(spec, store) == ""


def test_a_run_is_seen_by_its_lock(tmp_path: Path) -> None:
    home = tmp_path / "state"
    store = LocalStore(home)
    assert not store.running()
    home.mkdir()
    with store.lock("chat"):
        assert LocalStore(home).running()
    assert not store.running()
