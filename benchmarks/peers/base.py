"""What a peer is, and what its program is told.

A program is started with the path of an order, a JSON file (`Order`). It reads events from one Kafka topic,
`{"event_id": "event-17", "prompt": "…"}`, asks the engine by the OpenAI protocol about each, with the order's
system prompt and at temperature 0 so that all get the same answers from it, and writes one record for each
to another topic, with the id anywhere in it. A record whose `answer` is null says that the event was given
up. A program never ends by itself: it is killed, and started again with the same order but for
`restore_from`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

PROGRAMS = Path(__file__).with_name("programs")
REQUIREMENTS = Path(__file__).with_name("requirements")
ID = re.compile(rb"\b(event|warm)-(\d+)\b")
ID_IN_PROMPT = r"\b(?:event|warm)-\d+\b"

SYSTEM = "You are a helpful assistant."
"""What ML_PREDICT's provider sends where it is told nothing. Where none is sent, a model's template may put
in another, of another length."""

Checkpoints = Literal["flink", "forebay"]
"""Whose REST service tells of them: Flink's as it is, or that of Forebay's Flink, which wants a key."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to do the work.

    `program` is a file in `programs`; `requirements` one in `requirements` with what its environment holds,
    None for the environment of Forebay; `packages` are those whose versions are recorded. `docs` is the page
    by which it was set up. `options` are handed to the program as they are. `jars` are looked for in the
    folder of Flink's connectors. `limits` says what the system cannot do, by the name of a part of the
    measurement.
    """

    name: str
    title: str
    program: str
    docs: str
    packages: tuple[str, ...] = ()
    requirements: str | None = None
    checkpoints: Checkpoints | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    jars: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Order:
    """What a program is told. `state`: a folder of its own that outlives a kill. `restore_from`: the newest
    checkpoint of Flink in it, after a kill. `capacity`: requests in flight at most."""

    bootstrap: str
    events: str
    results: str
    letters: str
    engine: str
    model: str
    system: str
    max_tokens: int
    capacity: int
    state: str
    rest_port: int
    restore_from: str | None = None
    jars: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.write_bytes(orjson.dumps(asdict(self)))


def event_of(id: str) -> dict[str, str]:
    """An event. Its id is in its prompt, where the scripted engine finds it."""
    return {
        "event_id": id,
        "prompt": f"Post {id} is about rain in the harbour. Say in a word what it is about.",
    }


@dataclass(frozen=True, slots=True)
class Named:
    """What a record of the results says: of which event, and whether it has an answer."""

    kind: str
    index: int
    answered: bool


def read_result(value: bytes) -> Named | None:
    """The event that a record names; None where it names none, or is no JSON object."""
    found = ID.search(value)
    if found is None:
        return None
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(document, dict):
        return None
    return Named(found[1].decode(), int(found[2]), document.get("answer") is not None)
