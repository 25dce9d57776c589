"""What a fake replica does, as one value that can be handed to another process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from forebay.testing.delays import Fixed, Mixture
from forebay.testing.faults import Faults


@dataclass(frozen=True, slots=True)
class ReplicaScript:
    """The behaviour of a fake replica, which speaks vLLM's protocol.

    An answer takes `delay` to its first token, plus `prefill_s_per_char` for each character of the prompt
    that the prefix cache does not hold, plus `token_s` for each token of the answer, plus `decode`. A token
    has 4 characters.

    Attributes:
        models: Names of the models that it serves.
        delay, decode: `Fixed` or `Mixture`: seconds before the first token, and after it.
        token_s: Seconds per token of the answer.
        chunks: In how many pieces an answer is streamed.
        slots: How many requests run at a time; further ones queue. None: all.
        max_queue: How many may queue; the next gets a 503. None: any number.
        calls_per_s, calls_at_once: Faster calls, after a first burst of `calls_at_once`, get a 429.
        crowding: By which share each running request slows the others down.
        prefill_s_per_char: Seconds per character of prompt that is not in the prefix cache.
        block_chars: Characters per block of the prefix cache.
        cache_blocks: Number of blocks of the prefix cache; the least recently used goes first. 0: no cache.
        max_model_len: Tokens of prompt and `max_tokens` together; more gets a 400.
        retry_after_s: `Retry-After` of a scripted 429 or 503.
        api_key: The key that calls must carry; None: none.
        load_header_on_streams: Send vLLM's load header with streamed answers as well. vLLM itself does not.
        metrics: What `/metrics` answers instead of the truth.
        streams: Without it, answers come in one piece even if a stream was asked for.
        absent: Paths that answer 404. Without `/metrics` there is no load header either.
        faults: Which calls fail.

    >>> ReplicaScript(models=("small",), delay=Fixed(0.01), slots=4).max_model_len
    32768
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

    Attributes:
        calls: Number of tries by request id, in the order in which the ids first came.
        in_flight, max_in_flight: Requests that run or queue, now and at most.
        completed: Answers that were complete.
        aborted: Requests whose client went away before the answer was complete.
    """

    calls: dict[str, int]
    in_flight: int
    max_in_flight: int
    completed: int
    aborted: int


def _pairs(values: list[list[Any]]) -> tuple[tuple[Any, Any], ...]:
    return tuple((first, second) for first, second in values)
