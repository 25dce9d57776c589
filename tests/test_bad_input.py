"""What bad input gets: every kind of it in a run of a real pipeline, and then fed in again."""

from __future__ import annotations

import base64
import os
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

# One run, or one node, for all of them.
pytestmark = [pytest.mark.flink, pytest.mark.xdist_group("bad_input")]

KEY = "sk-very-secret-0123456789"
SCHEMA = {
    "type": "object",
    "properties": {"topic": {"enum": ["a", "b"]}},
    "required": ["topic"],
    "additionalProperties": False,
}
TRIES = 3
INVALID_TRIES = 2
HANGING = b'{"text": "((fault:hang))"}'

GIVEN_UP: dict[str, tuple[bytes, str, int, str]] = {
    "not JSON": (b"this is no JSON", "malformed_record", 0, "not JSON"),
    "not an object": (b"[1, 2]", "malformed_record", 0, "object"),
    "not UTF-8": (b'{"text": "\xff\xfe"}', "malformed_record", 0, "UTF-8"),
    "missing field": (b'{"body": "no text"}', "template_failed", 0, "field 'text' is missing"),
    "prompt too long": (
        orjson.dumps({"text": "long " * 4000}),
        "prompt_too_long",
        1,
        "maximum context length is 4000",
    ),
    "breaks the schema": (b'{"text": "((fault:schema))"}', "invalid_answer", INVALID_TRIES, "not JSON"),
    "garbage": (b'{"text": "((fault:garbage))"}', "protocol_violation", TRIES, ""),
    "binary": (b'{"text": "((fault:binary))"}', "protocol_violation", TRIES, ""),
    "endless": (b'{"text": "((fault:huge))"}', "protocol_violation", TRIES, "more than"),
    "error in mid-stream": (b'{"text": "((fault:error))"}', "server_fault", TRIES, "scripted error"),
    "400": (b'{"text": "((fault:400))"}', "bad_request", 1, "answered 400"),
    "401": (b'{"text": "((fault:401))"}', "unauthorized", 1, "check the API key"),
    "404": (b'{"text": "((fault:404))"}', "model_not_found", 1, "serves the model 'fake'"),
    "500": (b'{"text": "((fault:500))"}', "server_fault", TRIES, "answered 500"),
    "hang": (HANGING, "timeout", TRIES, ""),
}
"""The line, and its dead letter: cause, attempts, words of the detail."""

PASSING = ("429", "500", "503", "hang", "cut", "refuse", "garbage", "schema", "error")
"""Faults that pass after one attempt."""

INPUT = [
    *(line for line, _, _, _ in GIVEN_UP.values()),
    *(orjson.dumps({"text": f"((fault:{fault}x1))"}) for fault in PASSING),
    *(orjson.dumps({"text": f"plain {i}"}) for i in range(12)),
]


class Search:
    """Searches all files of a run: those in its folder repeatedly, because Flink deletes most checkpoints,
    the logs at the end."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self._folder = folder
        self._logs = logs
        self.with_key: set[Path] = set()
        self.checkpoints: set[Path] = set()
        self.in_flight: set[Path] = set()
        """Checkpoint files with an event whose calls hang."""

    def __call__(self, _: object = None) -> None:
        self._search(self._folder)

    def finish(self) -> None:
        self._search(self._folder)
        self._search(self._logs)

    def _search(self, folder: Path) -> None:
        for place, _dirs, names in os.walk(folder):
            for path in (Path(place, name) for name in names):
                try:
                    data = path.read_bytes()
                except FileNotFoundError:
                    continue
                if KEY.encode() in data:
                    self.with_key.add(path)
                if path.parent.name.startswith("chk-"):
                    self.checkpoints.add(path)
                    if HANGING in data:
                        self.in_flight.add(path)


class Run:
    def __init__(
        self, pipelines: Any, lines: list[bytes], key_file: Path, flink_logs: Path, **document: Any
    ) -> None:
        self.pipelines = pipelines
        self.lines = lines
        self.search = Search(pipelines.folder, flink_logs)
        pipelines.write(*lines)
        spec = pipelines.spec(
            output={"schema": SCHEMA}, engine={"api_key": {"file": str(key_file)}}, **document
        )
        script = ReplicaScript(delay=Fixed(0.02), max_model_len=4000, retry_after_s=0.1, api_key=KEY)
        with ReplicaProcess(script) as replica:
            self.last = pipelines.run(spec, replica.url, watch=self.search)
            self.search.finish()
            self.report = replica.report()
        self.results = {row["position"]: row for row in pipelines.lines()}
        self.letters = {letter["position"]: letter for letter in pipelines.lines("out-dead-letters")}

    def at(self, line: bytes) -> str:
        return f"in.jsonl@{self.lines.index(line) + 1}"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File with the key: the session's JVM may run already and see no new variable."""
    path = tmp_path_factory.mktemp("secrets") / "key"
    path.write_text(KEY)
    return path


@pytest.fixture(scope="module")
def run(shared_pipelines: Any, flink_logs: Path, key_file: Path) -> Run:
    retry = {"max_attempts": TRIES, "max_invalid_answers": INVALID_TRIES, "base_s": 0.1, "max_backoff_s": 1.0}
    limits = {"timeout_s": 7.0, "deadline_s": 900.0, "retry": retry}
    return Run(shared_pipelines, INPUT, key_file, flink_logs, **limits)


@pytest.mark.parametrize("name", GIVEN_UP)
def test_a_failed_record_is_a_dead_letter_with_cause_attempts_and_input(run: Run, name: str) -> None:
    line, cause, attempts, words = GIVEN_UP[name]
    letter = run.letters[run.at(line)]
    assert letter["cause"] == cause
    assert words in letter["detail"]
    assert letter["attempts"] == attempts
    assert raw_of(letter) == line
    if attempts:
        assert run.report.calls.get(letter["id"], 0) == (letter["attempts"] if cause != "unauthorized" else 1)


@pytest.mark.parametrize("fault", PASSING)
def test_transient_fault_costs_one_attempt_only(run: Run, fault: str) -> None:
    line = orjson.dumps({"text": f"((fault:{fault}x1))"})
    assert run.results[run.at(line)]["attempts"] == 2


def test_nothing_is_lost_or_duplicated_and_the_job_continues(run: Run) -> None:
    positions = Counter([*run.results, *run.letters])
    assert positions == Counter(f"in.jsonl@{number}" for number in range(1, len(INPUT) + 1))
    assert len(run.letters) == len(GIVEN_UP)
    assert (run.last.results, run.last.dead_letters) == (len(run.results), len(run.letters))
    assert (run.last.accepted, run.last.restarts, run.last.state) == (len(INPUT), 0, "FINISHED")


def test_the_api_key_is_in_no_output_and_no_log(run: Run) -> None:
    assert run.results, "the key was not used"
    assert run.search.with_key == set()


def test_the_api_key_is_in_no_checkpoint(pipelines: Any, flink_logs: Path, key_file: Path) -> None:
    (pipelines.folder / "inbox").mkdir()
    pipelines.write({"text": "plain"}, {"text": "((fault:401))"}, HANGING, name="inbox/1.jsonl")
    spec = pipelines.spec(
        source={"type": "jsonl", "path": "inbox", "follow": True},
        engine={"api_key": {"file": str(key_file)}},
        timeout_s=100.0,
        deadline_s=100.0,
    )
    search = Search(pipelines.folder, flink_logs)

    def interrupt_in_time(_: object) -> None:
        search()
        if search.in_flight and pipelines.lines() and pipelines.lines("out-dead-letters"):
            raise KeyboardInterrupt

    script = ReplicaScript(delay=Fixed(0.02), api_key=KEY)
    with ReplicaProcess(script) as replica, pytest.raises(KeyboardInterrupt):
        pipelines.run(spec, replica.url, watch=interrupt_in_time)
    search.finish()
    assert any(path.name == "_metadata" and path.exists() for path in search.checkpoints)
    assert search.with_key == set()


def test_dead_letters_are_replayed_unchanged(run: Run) -> None:
    spec = run.pipelines.spec(
        name="again",
        source={"type": "dead_letters", "path": "out-dead-letters"},
        prompt='{{ event.text | default("none") | replace("((fault:", "") }}',
        output={"schema": SCHEMA},
        sink={"type": "jsonl", "path": "again"},
    )
    with ReplicaProcess(ReplicaScript(delay=Fixed(0.02))) as replica:
        run.pipelines.run(spec, replica.url)
    unreadable = [line for line, cause, _, _ in GIVEN_UP.values() if cause == "malformed_record"]
    letters = run.pipelines.lines("again-dead-letters")
    assert Counter(map(raw_of, letters)) == Counter(unreadable)
    assert {letter["cause"] for letter in letters} == {"malformed_record"}
    answered = [row["fields"] for row in run.pipelines.lines("again")]
    expected = [orjson.loads(line) for line, _, _, _ in GIVEN_UP.values() if line not in unreadable]
    assert sorted(answered, key=orjson.dumps) == sorted(expected, key=orjson.dumps)


def raw_of(letter: dict[str, Any]) -> bytes:
    if "input" in letter:
        text: str = letter["input"]
        return text.encode()
    return base64.b64decode(letter["input_base64"])
