"""Records without a key do not share state."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.testing.replica import ReplicaScript, ReplicaThread

pytestmark = pytest.mark.flink

KEYLESS: list[dict[str, Any]] = [
    {"user": None, "text": "My card number is 4111."},
    {"user": "", "text": "What is my card number?"},
    {"user": " \t", "text": "And my name?"},
    {"text": "Who am I?"},
]
ANN = {"user": "ann", "text": "Hello."}
NONE = {"user": "None", "text": "I am called so."}


def test_sessions_make_dead_letters_of_records_without_a_key(pipelines: Any) -> None:
    pipelines.write(*KEYLESS, ANN, NONE, name="events.jsonl")
    spec = pipelines.spec(
        prompt=None,
        source={"type": "jsonl", "path": "events.jsonl"},
        application={"type": "sessions"},
        key="{{ user }}",
    )
    with ReplicaThread(ReplicaScript()) as replica:
        last = pipelines.run(spec, replica.url)
    # The last look may be older than the last record.
    assert last.read <= 6
    turns = [(line["key"], line["answer"]["turn"]) for line in pipelines.lines() if "turn" in line["answer"]]
    assert sorted(turns) == [("None", 1), ("ann", 1)]
    letters = pipelines.lines("out-dead-letters")
    assert [letter["cause"] for letter in letters] == ["no_key"] * 4
    assert all("key: " in letter["detail"] for letter in letters)


def test_inference_answers_records_without_a_key_unordered(pipelines: Any) -> None:
    pipelines.write(*KEYLESS, ANN, NONE, name="events.jsonl")
    spec = pipelines.spec(
        prompt="{{ key | default('no key') }}: {{ text }}",
        source={"type": "jsonl", "path": "events.jsonl"},
        key="{{ user }}",
        ordering="key",
    )
    with ReplicaThread(ReplicaScript()) as replica:
        pipelines.run(spec, replica.url)
    assert sorted(line["key"] for line in pipelines.lines()) == ["", "", "", "", "None", "ann"]
    assert pipelines.lines("out-dead-letters") == []
