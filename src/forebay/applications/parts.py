"""What a pipeline gives the application that it runs."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.operators.answering import Call
from forebay.operators.keying import EventText


@dataclass(frozen=True)
class Parts:
    """The settings that all applications share; their meanings are those of `infer`."""

    call: Call
    key: EventText | None = None
    id: EventText | None = None
    capacity: int = 64
    shards: int = 8
    event_time: bool = False
    parallelism: int | None = None
    name: str = "infer"
