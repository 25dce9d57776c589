"""Defines a peer, and the order that its program gets."""

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
"""The default of ML_PREDICT's provider."""

Checkpoints = Literal["flink", "forebay"]
"""Whose REST service reports them: plain Flink's, or that of Forebay's Flink, which requires a key."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to do the work.

    `program`: a file in `programs`; `requirements`: one in `requirements` for its environment, None for
    Forebay's; `packages`: those whose versions are recorded. `docs`: the page by which it was set up.
    `options` are passed to the program. `jars` are looked for in the folder of Flink's connectors. `limits`:
    what the system cannot do, by part of the measurement.
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
    """A program's input."""

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
    return {
        "event_id": id,
        "prompt": f"Post {id} is about rain in the harbour. Say in a word what it is about.",
    }


@dataclass(frozen=True, slots=True)
class Named:
    """A record of the results: its event, and whether it has an answer."""

    kind: str
    index: int
    answered: bool


def read_result(value: bytes) -> Named | None:
    """The event that a record names; None if it names none or is not a JSON object."""
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
