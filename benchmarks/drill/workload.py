"""The input of a scenario's pipeline, and its exact output, however often it is interrupted."""

from __future__ import annotations

import base64
import csv
import io
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import orjson

from benchmarks.conversations import (
    BEGIN_MS,
    MAX_TOKENS,
    chatter,
    expected_answers,
    expected_summaries,
    messages,
)
from benchmarks.drill.scenario import Scenario, SourceKind
from benchmarks.expected_events import FILE, TopicsJob, TrendsJob
from benchmarks.tally import NUMBER
from benchmarks.workloads import RECOVERY_SUMMARIES, SummaryJob
from forebay.apps.sessions import Sessions
from forebay.connectors.formats import MAX_RECORD_BYTES
from forebay.connectors.generator.source import Generator
from forebay.testing.answers import echo

Flaw = Literal["refused", "not UTF-8", "too long", "long"]
"""`refused`: the engine answers 400."""
FLAWS: tuple[Flaw, ...] = ("refused", "not UTF-8", "too long", "long")
NOT_TEXT_BYTES = 900_000
"""In base64, more than a Kafka producer sends."""
REFUSED = "((fault:400))"
PAD = "pad"
NUMBERED = re.compile(rb'\s*\{"n":\s*(\d+)|(\d+),')
"""The beginning of an event: as JSON, or as a row of CSV."""


def flaw_of(scenario: Scenario, number: int) -> Flaw | None:
    if not scenario.bad or number % scenario.bad != scenario.bad - 1:
        return None
    flaws = FLAWS
    if scenario.source in {"sse", "websocket"}:
        flaws = ("refused",)
    elif scenario.source == "csv":
        # A field has at most 128 KiB.
        flaws = ("refused", "not UTF-8", "too long")
    return flaws[number // scenario.bad % len(flaws)]


def cause_of(scenario: Scenario, flaw: Flaw | None) -> str | None:
    """The cause of such an event's dead letter; None: it has a result."""
    match flaw:
        case "refused":
            return "bad_request"
        case "not UTF-8" | "too long":
            return "malformed_record"
        case "long" if scenario.sink == "kafka":
            return "too_large_for_sink"
    return None


def json_bytes(event: Mapping[str, Any], flaw: Flaw | None) -> bytes:
    """The event as a line of JSON, without line end."""
    if flaw is None or flaw == "refused":
        return orjson.dumps(event)
    return orjson.dumps({**event, PAD: ""}).removesuffix(b'"}') + _filling(event, flaw) + b'"}'


def row_bytes(event: Mapping[str, Any], flaw: Flaw | None) -> bytes:
    """The event as a row of CSV with line end; its last column is `PAD`."""
    out = io.StringIO()
    csv.writer(out).writerow([*event.values(), ""])
    filling = b"" if flaw is None or flaw == "refused" else _filling(event, flaw)
    return out.getvalue().encode().removesuffix(b"\r\n") + filling + b"\r\n"


def _filling(event: Mapping[str, Any], flaw: Flaw) -> bytes:
    match flaw:
        case "not UTF-8":
            return b"\xff" * NOT_TEXT_BYTES
        case "too long":
            return b"x" * MAX_RECORD_BYTES
    return b"x" * (MAX_RECORD_BYTES - len(orjson.dumps({**event, PAD: ""})))


def input_number(letter: Mapping[str, Any]) -> str | None:
    raw = str(letter.get("input") or "").encode()
    if "input_base64" in letter:
        # Base64 has a multiple of four characters; a truncated one may have fewer.
        raw = base64.b64decode(str(letter["input_base64"])[:400])
    found = NUMBERED.match(raw)
    return found and (found[1] or found[2]).decode()


STEP_MS = 50
DIRECTORY, ROWS = "in", "events.csv"
"""More names of inputs, which are part of positions."""
FILES_IN_DIRECTORY = 3
LATE_ANSWER = "((fault:503x1))"
SPEEDS = {"infer": 2.0, "sessions": 2.0, "summary": 10.0, "topics": 2.0, "trends": 5.0}
"""Replay speeds: ten to twenty seconds of events."""
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Expected:
    """`results`: answers by name of result; `letters`: causes by name of dead letter; `queues`: names whose
    results must be in this order, by key; `assignments`: the topic of each text, by its number."""

    results: Mapping[str, Any]
    letters: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[str, Sequence[str]] = field(default_factory=dict)
    assignments: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """`events`: the input; `document`: the part of a pipeline file about processing; `source`: how events are
    read."""

    events: Sequence[dict[str, Any]]
    document: Mapping[str, Any]
    source: Mapping[str, Any]
    expected: Expected


def workload(scenario: Scenario) -> Workload:
    match scenario.application:
        case "infer":
            return _infer(scenario)
        case "sessions":
            return _sessions(scenario)
        case "summary":
            return _summary(scenario)
        case "topics" | "trends":
            return _found(scenario)


def name_of(scenario: Scenario, line: Line) -> str | None:
    match scenario.application:
        case "summary":
            answer = line.get("answer")
            if not isinstance(answer, dict) or not isinstance(answer.get("window"), dict):
                return None
            return f"{answer.get('key')}@{answer['window'].get('start_ms')}"
        case "topics" | "trends":
            return _text(line.get("id"))
        case _ if scenario.source == "generator":
            return _text(line.get("position"))
    fields = line.get("fields")
    return str(fields[NUMBER]) if isinstance(fields, dict) and NUMBER in fields else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _infer(scenario: Scenario) -> Workload:
    document: dict[str, Any] = {"sampling": {"max_tokens": 8}}
    if scenario.event_time:
        document["event_time"] = {"out_of_orderness_s": 0.0}
    if scenario.source == "generator":
        posts = Generator(scenario.events, 20.0, seed=scenario.seed)
        found = {f"generator@{n}": echo(posts.event(n).fields["text"]) for n in range(scenario.events)}
        document["prompt"] = "{{ text }}"
        source = {
            "seed": scenario.seed,
            "rate": 20.0,
            "count": scenario.events,
            "paced": scenario.seed % 2 == 0,
        }
        return Workload((), document, source, Expected(found))
    events = list(_questions(scenario))
    document["prompt"] = "Event {{ " + NUMBER + " }} {{ text }}"
    document["key"] = "{{ key }}"
    if scenario.ordered:
        document["ordering"] = "key"
    causes = {n: cause_of(scenario, flaw_of(scenario, n)) for n in range(scenario.events)}
    letters = {str(n): cause for n, cause in causes.items() if cause is not None}
    results = {
        str(event[NUMBER]): echo(f"Event {event[NUMBER]} {event['text']}")
        for event in events
        if str(event[NUMBER]) not in letters
    }
    expected = Expected(results, letters, _queues(events, "key", results) if scenario.ordered else {})
    return Workload(events, document, _timed(scenario), expected)


def _questions(scenario: Scenario) -> Sequence[dict[str, Any]]:
    dice = random.Random(f"events:{scenario.seed}")
    found = []
    for n in range(scenario.events):
        late = dice.random() < 0.05
        fault = REFUSED if flaw_of(scenario, n) == "refused" else LATE_ANSWER if late else ""
        text = f"{fault} {dice.randrange(1_000_000)} says 'é, {n}'".strip()
        key = f"k{dice.randrange(scenario.keys)}"
        found.append({NUMBER: n, "key": key, "text": text, "at": BEGIN_MS + STEP_MS * n})
    return found


def _sessions(scenario: Scenario) -> Workload:
    settings = Sessions(budget_tokens=512, idle_s=None)
    events = [
        {**event, "at": BEGIN_MS + STEP_MS * event["n"]}
        for event in messages(scenario.events, scenario.keys, scenario.seed, words=12)
    ]
    answers = expected_answers([{k: v for k, v in each.items() if k != "at"} for each in events], settings)
    # Each event is answered before the next one, so answers are in the order of events.
    results = {str(event[NUMBER]): answer for event, answer in zip(events, answers, strict=True)}
    document = {
        "application": {"type": "sessions", "budget_tokens": 512, "idle_s": None},
        "key": "{{ user }}",
        "sampling": {"max_tokens": MAX_TOKENS},
    }
    return Workload(
        events, document, _timed(scenario), Expected(results, queues=_queues(events, "user", results))
    )


def _summary(scenario: Scenario) -> Workload:
    job = SummaryJob()
    events = list(chatter(scenario.events, scenario.seed, size_s=RECOVERY_SUMMARIES.size_s))
    found = expected_summaries(events, RECOVERY_SUMMARIES)
    results = {f"{key}@{start_ms}": answer for (key, start_ms), answer in found.items()}
    return Workload(events, job.document(), _timed(scenario, always=True), Expected(results))


def _found(scenario: Scenario) -> Workload:
    source = _timed(scenario, always=True)
    if scenario.application == "topics":
        topics = TopicsJob()
        events = topics.events(scenario.events, scenario.seed)
        expected = Expected(topics.answers_by_id(events), assignments=topics.assigned(events))
        return Workload(events, {**topics.document(), "id": "{{ " + NUMBER + " }}"}, source, expected)
    trends = TrendsJob()
    events = trends.events(scenario.events, scenario.seed)
    expected = Expected(trends.answers_by_id(events, partial(_position, scenario.source, len(events))))
    return Workload(events, trends.document(), source, expected)


def events_per_file(events: int) -> int:
    return -(-events // FILES_IN_DIRECTORY)


def _position(source: SourceKind, events: int, number: int) -> str:
    match source:
        case "directory":
            file, line = divmod(number, events_per_file(events))
            return f"{DIRECTORY}/{file}.jsonl@{line + 1}"
        case "csv":
            # The header is the first line.
            return f"{ROWS}@{number + 2}"
        case _:
            return f"{FILE}@{number + 1}"


def _timed(scenario: Scenario, *, always: bool = False) -> dict[str, Any]:
    source: dict[str, Any] = {}
    if always or scenario.event_time or scenario.source == "replay":
        source = {"time": "at", "time_format": "unix_ms"}
    if scenario.source == "replay":
        source["replay"] = {"speed": SPEEDS[scenario.application]}
    return source


def _queues(events: Sequence[dict[str, Any]], key: str, results: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for event in events:
        if str(event[NUMBER]) in results:
            found.setdefault(event[key], []).append(str(event[NUMBER]))
    return found
