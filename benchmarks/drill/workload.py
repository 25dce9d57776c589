"""The input of a scenario's pipeline, and its exact output, however often it is interrupted."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.chatter import BEGIN_MS, chatter, expected_summaries
from benchmarks.conversations import MAX_TOKENS, expected_answers, messages
from benchmarks.drill.records import REFUSED, cause_of, flaw_of
from benchmarks.drill.scenario import Scenario, SourceKind
from benchmarks.expected_events import FILE, TopicsJob, TrendsJob
from benchmarks.tally import NUMBER
from benchmarks.workloads import RECOVERY_SUMMARIES, SummaryJob
from forebay.apps.sessions import Sessions
from forebay.connectors.generator.source import Generator
from forebay.testing.answers import echo

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
    results must be in this order, by key."""

    results: Mapping[str, Any]
    letters: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """`events`: the input; `document`: the part of a pipeline file about processing; `source`: how events are
    read."""

    events: Sequence[dict[str, Any]]
    document: Mapping[str, Any]
    source: Mapping[str, Any]
    expected: Expected


def workload(scenario: Scenario) -> Workload:
    """Input and expected output of a scenario."""
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
        return Workload(events, topics.document(), source, Expected(topics.foretold(events)))
    trends = TrendsJob()
    events = trends.events(scenario.events, scenario.seed)
    expected = Expected(trends.foretold(events, partial(_position, scenario.source, len(events))))
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
