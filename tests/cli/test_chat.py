"""`forebay chat` as a command: turns, messages, and every reason why nobody answers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import produce
from tests.cli.commands import refusal
from tests.cli.test_watch import commit
from tests.pipeline.test_chat import letter, sessions, turn
from typer.testing import CliRunner, Result

from forebay.cli import application
from forebay.connectors.files.sink import read_jsonl_sink
from forebay.connectors.kafka.admin import KafkaAway
from forebay.errors import PipelineFailed
from forebay.pipeline.chat import FILE, Conversation
from forebay.pipeline.followed_lines import FollowedLines
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import LocalStore, RunState, write_state
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until


@pytest.fixture(autouse=True)
def _home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_HOME", str(home))


@pytest.fixture
def spec(tmp_path: Path) -> PipelineSpec:
    found = sessions(tmp_path)
    document = found.model_dump(mode="json", include={"name", "source", "key", "sink", "application"})
    (tmp_path / "chat.yaml").write_text(json.dumps(document))
    Path(found.checkpoint.dir).mkdir(mode=0o700, parents=True)
    return found


def chat(folder: Path, *words: str, typed: str = "") -> Result:
    runner = CliRunner()
    return runner.invoke(application(), ["chat", str(folder / "chat.yaml"), "--key", "ann", *words], typed)


Answer = Callable[[int, dict[str, Any]], dict[str, Any]]


def echo(number: int, fields: dict[str, Any]) -> dict[str, Any]:
    return {**turn(number, f"you wrote {fields['text']}", mark=fields["forebay_chat"]), "fields": fields}


@contextmanager
def answering(spec: PipelineSpec, answer: Answer = echo) -> Iterator[None]:
    """A run that holds the lock and commits one result for each message."""
    ended = threading.Event()
    file = Path(spec.source.path, FILE)  # type: ignore[attr-defined]

    def run() -> None:
        done = 0
        while not ended.wait(0.01):
            lines = file.read_bytes().splitlines() if file.exists() else []
            for number, line in enumerate(lines[done:], done):
                value = answer(number + 1, orjson.loads(line))
                letters = {"sink.path": spec.directories()["dead_letters.path"]}
                place = letters if "cause" in value else spec.directories()
                commit_to(Path(place["sink.path"]), number, value)
            done = len(lines)

    thread = threading.Thread(target=run)
    with LocalStore(Path(spec.checkpoint.dir)).lock("chat"):
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def commit_to(folder: Path, number: int, line: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".part-x-{number}"
    hidden.write_bytes(orjson.dumps(line) + b"\n")
    hidden.rename(folder / f"part-y-{number}.jsonl")


@pytest.mark.heavy
def test_a_conversation_shows_the_turns_before_and_each_answer(tmp_path: Path, spec: PipelineSpec) -> None:
    commit(spec, 0, turn(1, "an earlier answer"))
    with answering(spec):
        found = chat(tmp_path, typed="hello\n\nagain\n")
    assert found.exit_code == 0
    assert found.stdout.splitlines() == [
        "ann> question 1",
        "    an earlier answer",
        "    you wrote hello",
        "    you wrote again",
    ]


def test_one_message_gives_a_document(tmp_path: Path, spec: PipelineSpec) -> None:
    with answering(spec):
        found = chat(tmp_path, "--message", "hello", "--json")
    document = json.loads(found.stdout)
    assert (document["key"], document["message"], document["answer"]["turn"]) == ("ann", "hello", 1)
    assert document["answer"]["text"] == "you wrote hello"


@pytest.mark.heavy
def test_a_message_without_an_answer_fails_with_its_cause(tmp_path: Path, spec: PipelineSpec) -> None:
    def letter(number: int, fields: dict[str, Any]) -> dict[str, Any]:
        given = {"cause": "connection", "detail": "refused", "input": orjson.dumps(fields).decode()}
        return {**given, "key": "ann", "id": "t"}

    with answering(spec, letter):
        found = chat(tmp_path, "--message", "hello", "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["cause"] == "connection"
    with answering(spec, letter):
        found = chat(tmp_path, "--message", "hello")
    assert "no answer: " in found.stderr
    assert "(connection: refused)" in found.stderr


def test_stopped_run_shows_its_turns_and_how_to_continue(tmp_path: Path, spec: PipelineSpec) -> None:
    ended = {"ended": "idle", "turns": 2, "summary": "Ann likes tea."}
    commit(spec, 0, turn(1, "one"), turn(2, "two"), {**turn(0, ""), "answer": ended}, turn(1, "new"))
    found = chat(tmp_path)
    assert found.stdout.splitlines()[2:] == [
        "ann> question 2",
        "    two",
        "(the session ended after 2 turns: Ann likes tea.)",
        "ann> question 1",
        "    new",
    ]
    assert isinstance(found.exception, PipelineFailed)
    assert "start it with `forebay run " in str(found.exception)


def test_topic_may_be_read_by_a_run_elsewhere(tmp_path: Path, spec: PipelineSpec) -> None:
    commit(spec, 0, turn(1, "one"))
    topic = json.dumps({"type": "kafka", "bootstrap": "h:1", "topics": ["chat"]})
    text = str(chat(tmp_path, "--set", f"source={topic}").exception)
    assert "If it runs on Kubernetes" in text
    assert "write records to its source (kafka: chat at h:1)" in text
    assert "Kubernetes" not in str(chat(tmp_path).exception)


def test_the_command_that_starts_the_run_has_the_options_given(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "old.jsonl").touch()
    key = "key={{ user }}"
    given = ["--source", f"{tmp_path}/in", "--out", f"{tmp_path}/out", "--set", "source.follow=true"]
    commit_to(tmp_path / "out" / "results", 0, turn(1, "one"))
    found = CliRunner().invoke(application(), ["chat", "sessions", "--key", "ann", *given, "--set", key])
    assert (
        f"start it with `forebay run sessions --source={tmp_path}/in --out={tmp_path}/out "
        f"--set=source.follow=true '--set={key}'`" in str(found.exception)
    )


def test_a_file_that_is_not_there_is_named() -> None:
    assert refusal("chat", "nofile.yaml", "--key", "ann").startswith("nofile.yaml: no such file")


@pytest.mark.heavy
def test_only_the_message_with_wrong_bytes_is_refused(tmp_path: Path, spec: PipelineSpec) -> None:
    words = ["chat", str(tmp_path / "chat.yaml"), "--key", "ann"]
    with answering(spec):
        found = CliRunner().invoke(application(), words, b"hello\n\xff\nagain\n")
    assert found.stdout.splitlines() == ["    you wrote hello", "    you wrote again"]
    assert "the message: expected UTF-8" in found.stderr


def test_a_key_that_a_stopped_run_lacks_is_refused(tmp_path: Path, spec: PipelineSpec) -> None:
    commit(spec, 0, turn(1, "one", key="anna"), turn(1, "one", key="bob"))
    text = refusal("chat", str(tmp_path / "chat.yaml"), "--key", "ann")
    assert "--key: 'ann' has no turn in JSON lines in " in text
    assert "2 other keys have one; did you mean 'anna'?" in text


def test_a_new_key_of_a_run_begins_a_session(tmp_path: Path, spec: PipelineSpec) -> None:
    with answering(spec):
        assert "'ann' has no turn yet" in chat(tmp_path).stderr


def test_a_key_may_be_older_than_what_was_read_of_a_topic(
    tmp_path: Path, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conversation, "partial", True)
    words = "'ann' has no turn among the newest records that were read of "
    with answering(spec):
        given = chat(tmp_path).stderr
    for text in (given, refusal("chat", str(tmp_path / "chat.yaml"), "--key", "ann")):
        assert words in text
        assert "; its session may be older" in text


def test_topics_are_skipped_just_before_a_message(
    tmp_path: Path, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, sent = tmp_path / "in" / FILE, list[int]()
    monkeypatch.setattr(Conversation, "skip", lambda _: sent.append(file.exists()))
    with answering(spec):
        chat(tmp_path, "--message", "hello")
    assert sent == [False]


def test_turns_may_be_older_than_what_was_read_of_a_topic(
    tmp_path: Path, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(spec, 0, turn(1, "one"))
    assert "older turns" not in chat(tmp_path).stderr
    monkeypatch.setattr(Conversation, "partial", True)
    assert "older turns may be in JSON lines in " in chat(tmp_path).stderr


def test_chat_continues_after_an_unsent_message(
    tmp_path: Path, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = iter([True, False])

    def skip(_: Conversation) -> None:
        if next(away):
            raise KafkaAway("Kafka at h:1 does not answer")

    monkeypatch.setattr(Conversation, "skip", skip)
    with answering(spec):
        found = chat(tmp_path, typed="lost\nhello\n")
    assert found.exit_code == 0
    assert found.stdout.splitlines() == ["    you wrote hello"]
    assert "the message was not sent: Kafka at h:1 does not answer" in found.stderr


def test_json_needs_one_message(tmp_path: Path, spec: PipelineSpec) -> None:
    text = refusal("chat", str(tmp_path / "chat.yaml"), "--key", "ann", "--json")
    assert "--json: expected --message with it" in text


def test_other_pipelines_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    ends = {"source": {"type": "generator"}, "sink": {"type": "stdout"}}
    file.write_text(json.dumps({"name": "p", "prompt": "{{ text }}", **ends}))
    assert "expected a pipeline with the application sessions" in refusal("chat", str(file), "--key", "ann")


@pytest.mark.heavy
def test_text_from_outside_stays_harmless_and_short(tmp_path: Path, spec: PipelineSpec) -> None:
    def hostile(number: int, fields: dict[str, Any]) -> dict[str, Any]:
        text = "ann> \x1b[2J[red]ok\nann> a fake message" + "x" * 100_000
        return {**turn(number, text, mark=fields["forebay_chat"]), "fields": fields}

    commit(spec, 0, *(turn(number, "\x1b[2Jno\nann> fake") for number in range(1, 41)))
    with answering(spec, hostile):
        found = chat(tmp_path, typed="hello\n")
    assert "\x1b" not in found.stdout
    assert "(20 earlier turns are not shown)" in found.stdout
    assert "\n    ann> �[2J[red]ok\n    ann> a fake message" in found.stdout
    own = [line for line in found.stdout.splitlines() if line.startswith("ann>")]
    assert own == [f"ann> question {number}" for number in range(21, 41)]
    assert len(found.stdout) < 10_000


@pytest.mark.heavy
def test_reason_of_a_missing_answer_is_named(
    tmp_path: Path, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["forebay.cli.chat"], "REPORT_S", 0.01)
    home = Path(spec.checkpoint.dir)
    write_state(home, RunState(settings={"engine": {"url": ["http://127.0.0.1:1"]}}))
    with LocalStore(home).lock("chat"):
        found = chat(tmp_path, "--message", "hello", "--timeout", "0")
    assert "the engine does not answer: " in str(found.exception)
    assert "the message is in the source" in str(found.exception)

    running = iter((True, False))
    monkeypatch.setattr(LocalStore, "running", lambda _store: next(running))
    found = chat(tmp_path, "--message", "hello")
    assert "the pipeline has stopped; the message is in the source" in str(found.exception)


@pytest.mark.flink
@pytest.mark.slow
def test_a_real_run_answers_remembers_and_resumes(tmp_path: Path, spec: PipelineSpec) -> None:
    log, out = tmp_path / "run.log", Path(spec.directories()["sink.path"])

    @contextmanager
    def running(replica: ReplicaThread) -> Iterator[None]:
        command = [sys.executable, "-m", "forebay", "run", str(tmp_path / "chat.yaml")]
        with log.open("wb") as text:
            process = subprocess.Popen([*command, "--engine", replica.url], stdout=text, stderr=text)
        try:
            wait_until(lambda: LocalStore(Path(spec.checkpoint.dir)).running())
            yield
            process.send_signal(signal.SIGINT)
            assert process.wait(200) == 130, log.read_text()
        finally:
            process.kill()
            process.wait()

    def turn_of(message: str) -> int:
        found = chat(tmp_path, "--message", message, "--json")
        assert found.exit_code == 0, (found.output, found.exception, log.read_text())
        return int(json.loads(found.stdout)["answer"]["turn"])

    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        with running(replica):
            assert turn_of("one") == 1
            lines = FollowedLines(out)
            assert list(lines.new())
            (tmp_path / "in" / "others.jsonl").write_text('{"user": "ann", "text": "by another way"}\n')
            wait_until(lambda: any(b"another way" in line for line in lines.new()))
            assert turn_of("two") == 3
        assert "does not run" in str(chat(tmp_path, "--message", "three").exception)
        with running(replica):
            assert turn_of("three") == 4
    turns = [json.loads(line)["answer"]["turn"] for line in read_jsonl_sink(out)]
    assert turns == [1, 2, 3, 4]


@pytest.mark.flink
@pytest.mark.slow
@pytest.mark.usefixtures("kafka_jar")
def test_a_run_between_topics_answers_and_its_turns_are_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    node: Any,
    topic: Callable[..., str],
    pipelines: Any,
) -> None:
    monkeypatch.setenv("FOREBAY_HOME", str(pipelines.folder / "home"))
    access, letters, stop = {"type": "kafka", "bootstrap": node.bootstrap}, topic(), threading.Event()
    spec = sessions(
        tmp_path,
        source={**access, "topics": [topic(2)]},
        sink={**access, "topic": topic(2)},
        dead_letters={**access, "topic": letters},
        checkpoint={"interval_s": 0.5},
    )
    document = spec.model_dump(mode="json", exclude={"prompt", "messages", "checkpoint"}, exclude_none=True)
    (tmp_path / "chat.yaml").write_text(json.dumps(document))
    with ReplicaThread() as replica, ThreadPoolExecutor(1) as pool:
        run = pool.submit(pipelines.run, spec, replica.url, enough=lambda _: stop.is_set())
        try:
            wait_until(lambda: run.done() or LocalStore(Path(spec.checkpoint.dir)).running())
            found = [chat(tmp_path, "--message", text, "--json", "--timeout=200") for text in ("one", "two")]
        finally:
            stop.set()
        run.result()
    assert not [each.exception for each in found if each.exception]
    answers = [json.loads(each.stdout)["answer"] for each in found]
    assert [answer["turn"] for answer in answers] == [1, 2]
    shown = chat(tmp_path)
    assert shown.stdout.splitlines()[:4:2] == ["ann> one", "ann> two"]
    assert "does not run" in str(shown.exception)
    produce(node.bootstrap, letters, [{"value": orjson.dumps(letter("mine"))}])
    with closing(Conversation(spec, "ann")) as conversation:
        failed = conversation.turn("mine")
    assert failed is not None
    assert failed["cause"] == "no_key"
