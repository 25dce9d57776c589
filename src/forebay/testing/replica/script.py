"""What a fake replica does, as one value that can be handed to another process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from forebay.testing.delays import Fixed, Mixture
from forebay.testing.faults import Faults


@dataclass(frozen=True, slots=True)
class ReplicaScript:
    """The behaviour of a fake replica.

    An answer takes `delay(request id)` seconds to its first token, plus `prefill_s_per_char` for each
    character of the prompt that the prefix cache does not hold, plus `token_s` per token of the answer, plus
    `decode(request id)`; its content comes in `chunks` pieces spread over these last two parts. `slots`
    requests run at a time, further ones queue, and where `max_queue` of them wait already the next gets a
    503. Calls that come faster than `calls_per_s`, after a burst of `calls_at_once`, get a 429 that says when
    to come again. Each request that runs makes the others slower by the share `crowding`; all these times are
    those of a replica at speed 1, which `POST /_speed` changes while it runs. The prefix cache holds blocks
    of `block_chars` characters, `cache_blocks` of them, least recently used out first; 0 switches it off.
    Prompts whose tokens (4 characters each) and `max_tokens` exceed `max_model_len` get a 400.

    `load_header_on_streams`: vLLM sends its load header only with answers that are not streamed; so does
    the fake, unless this is set. `metrics` is what `/metrics` answers instead of the truth. Not `streams`:
    answers come in one piece also where a stream was asked for. Paths that are `absent` are a 404, and
    without `/metrics` there is no load header either.
    """

    models: tuple[str, ...] = ("fake",)
    delay: Fixed | Mixture = field(default_factory=Mixture)
    token_s: float = 0.0
    decode: Fixed | Mixture = field(default_factory=lambda: Fixed(0.0))
    chunks: int = 1
    slots: int | None = None
    max_queue: int | None = None
    calls_per_s: float | None = None
    calls_at_once: int = 1
    crowding: float = 0.0
    prefill_s_per_char: float = 0.0
    block_chars: int = 512
    cache_blocks: int = 0
    max_model_len: int = 32_768
    retry_after_s: float = 1.0
    api_key: str | None = field(default=None, repr=False)
    load_header_on_streams: bool = False
    metrics: str | None = None
    streams: bool = True
    absent: tuple[str, ...] = ()
    faults: Faults = field(default_factory=Faults)

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> ReplicaScript:
        values: dict[str, Any] = orjson.loads(text)
        faults = values["faults"]
        for name in ("delay", "decode"):
            delay = values[name]
            values[name] = (
                Fixed(**delay) if "seconds" in delay else Mixture(_pairs(delay["parts"]), delay["seed"])
            )
        values["faults"] = Faults(_pairs(faults["shares"]), faults["seed"])
        values["models"], values["absent"] = tuple(values["models"]), tuple(values["absent"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class CallReport:
    """What a fake replica has seen since it started.

    `calls`: tries by request id, in the order in which the ids first came. `in_flight` and `max_in_flight`
    count running and queued requests; `aborted` those whose client went away before the answer was whole.
    """

    calls: dict[str, int]
    in_flight: int
    max_in_flight: int
    completed: int
    aborted: int


def _pairs(values: list[list[Any]]) -> tuple[tuple[Any, Any], ...]:
    return tuple((first, second) for first, second in values)
