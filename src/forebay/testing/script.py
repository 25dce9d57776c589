"""The behaviour of scripted engines, as values that can be sent to another process."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

Delay = Callable[[str], float]
"""From a request id to seconds. Must be picklable, and the same for an id in every process."""


def unit(seed: int, *parts: object) -> float:
    """A number in [0, 1) that depends only on the arguments, uniformly distributed."""
    digest = blake2b("\0".join(map(str, (seed, *parts))).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") / 2**64


@dataclass(frozen=True, slots=True)
class Fixed:
    """A delay that is the same for every request.

    Attributes:
        seconds: The delay.

    >>> Fixed(0.01)("any request")
    0.01
    """

    seconds: float = 0.05

    def __call__(self, request_id: str) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Mixture:
    """A delay drawn by request id: the same request always takes the same time.

    Attributes:
        parts: Pairs of share and seconds. Shares are relative to their sum. Default, as in the benchmarks: 95
            % of the requests take 50 ms and 5 % take 2 s.
        seed: Another seed is another draw.

    >>> slow = Mixture(((0.9, 0.05), (0.1, 2.0)))
    >>> slow("request 1") == slow("request 1")
    True
    """

    parts: tuple[tuple[float, float], ...] = ((0.95, 0.05), (0.05, 2.0))
    seed: int = 0

    def __call__(self, request_id: str) -> float:
        left = unit(self.seed, "delay", request_id) * sum(share for share, _ in self.parts)
        for share, seconds in self.parts:
            left -= share
            if left < 0:
                return seconds
        return self.parts[-1][1]


STATUSES = {"400", "401", "403", "404", "422", "429", "500", "502", "503", "504"}
ANSWERS = frozenset(
    ("schema", "length", "empty", "reasons", "reasoning", "tool_calls", "refusal", "content_filter", "abort")
)
"""Complete HTTP answers, as described in `Faults`."""
FAULTS = STATUSES | ANSWERS | {"too_long", "hang", "refuse", "cut", "garbage", "binary", "huge", "error"}
"""All faults, as described in `Faults`."""

MARKER = re.compile(r"\(\(fault:([a-z0-9_]+?)(?:x([0-9]{1,6}))?\)\)")


@dataclass(frozen=True, slots=True)
class Faults:
    """Which calls fail, and how.

    A fault is an HTTP status of `400`, `401`, `403`, `404`, `422`, `429`, `500`, `502`, `503`, `504`, or one
    of `too_long` (a 400 for a prompt beyond the context), `hang` (no answer ever), `refuse` (the connection
    closes before the answer), `cut` (it closes in the middle of it), `garbage` (events that are not JSON),
    `binary` (no event stream at all), `huge` (an endless answer), `error` (an error object in the stream),
    `schema` (a complete answer that violates the schema), `length` (an answer truncated at half its length,
    as at `max_tokens`), `empty` (an answer without content), `reasons` (an answer with reasoning before it),
    `reasoning` (reasoning that used up all tokens), `tool_calls` and `refusal` (instead of content),
    `content_filter` and `abort` (half an answer, with that finish reason).

    A marker in a prompt takes precedence: `((fault:500))` fails every attempt, `((fault:500x2))` the first
    two. Of several markers, the first that is not used up applies: `((fault:503x2))((fault:cutx3))` gives
    503, 503, cut, and then the answer.

    Attributes:
        shares: Pairs of fault and the share of calls that it hits, drawn by request id and attempt.
        seed: Another seed is another draw.

    Raises `ValueError` for an unknown fault or a share outside 0 to 1.

    >>> Faults().pick("request 1", "Hello ((fault:503x2))", attempt=2)
    '503'
    >>> Faults().pick("request 1", "Hello ((fault:503x2))", attempt=3) is None
    True
    """

    shares: tuple[tuple[str, float], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, share in self.shares:
            if name not in FAULTS or not 0 <= share <= 1:
                raise ValueError(
                    f"fault {name}={share}; expected one of {sorted(FAULTS)} and a share of 0 to 1"
                )

    def pick(self, request_id: str, text: str, attempt: int) -> str | None:
        """The fault of attempt number `attempt` (from 1) of a request with this prompt text, or None."""
        if "((fault:" in text:
            for match in MARKER.finditer(text):
                if match[1] in FAULTS and (match[2] is None or attempt <= int(match[2])):
                    return match[1]
        if self.shares:
            left = unit(self.seed, "fault", request_id, attempt)
            for name, share in self.shares:
                left -= share
                if left < 0:
                    return name
        return None


@dataclass(frozen=True, slots=True)
class ReplicaScript:
    """The behaviour of a fake replica, which speaks vLLM's protocol.

    An answer takes `delay` to its first token, plus `prefill_s_per_char` per character of the prompt outside
    the prefix cache, plus `token_s` per token of the answer, plus `decode`. A token has 4 characters.

    Content parts, several prompts, `n`, `stop`, `logprobs`, `tools` and `tool_choice` behave like a vLLM with
    a tool parser, including what it refuses; a test compares the two. A tool is called if `tool_choice`
    requires it, with arguments that fit its parameters; with `auto` the answer is text.

    Attributes:
        models: Names of the models that it serves.
        delay, decode: `Fixed` or `Mixture`: seconds before the first token, and after it.
        token_s: Seconds per token of the answer.
        chunks: Pieces of a streamed answer.
        slots: Requests that run at a time; others queue. None: unlimited.
        max_queue: Maximum length of the queue; beyond it, a 503. None: unlimited.
        max_calls: Maximum number of concurrent calls; beyond it, a 429. None: unlimited.
        calls_per_s, calls_at_once: Faster calls, after a first burst of `calls_at_once`, get a 429.
        crowding: The share by which each running request slows down the others.
        prefill_s_per_char: Seconds per character of prompt that is not in the prefix cache.
        block_chars: Characters per block of the prefix cache.
        cache_blocks: Blocks of the prefix cache, which is LRU. 0: no cache.
        kv_tokens: Size of the KV cache, in tokens, that `/metrics` reports; 0: it does not.
        max_model_len: Tokens of prompt and `max_tokens` together; more gets a 400.
        retry_after_s: `Retry-After` of a scripted 429, and of one for `max_calls`.
        api_key: The key that calls must carry; None: none.
        load_header_on_streams: Send vLLM's load header with streamed answers too. vLLM itself does not.
        metrics: What `/metrics` returns instead of real values.
        streams: If False, answers come in one piece even if a stream was requested.
        gives_kv_cache: Return the location of a prompt's KV cache, if asked, for another replica to read.
        kv_lease_s: Lifetime of a KV cache, in seconds. Reading it later, or for another prompt, gives a
            broken answer.
        absent: Paths that answer 404. Without `/metrics` there is no load header either.
        id_in_prompt: Regular expression that finds the request's id in a prompt, for clients that cannot send
            `X-Request-Id`. None: only the header is used.
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
    max_calls: int | None = None
    calls_per_s: float | None = None
    calls_at_once: int = 1
    crowding: float = 0.0
    prefill_s_per_char: float = 0.0
    block_chars: int = 512
    cache_blocks: int = 0
    kv_tokens: int = 0
    max_model_len: int = 32_768
    retry_after_s: float = 1.0
    api_key: str | None = field(default=None, repr=False)
    load_header_on_streams: bool = False
    metrics: str | None = None
    streams: bool = True
    gives_kv_cache: bool = True
    kv_lease_s: float = 30.0
    absent: tuple[str, ...] = ()
    id_in_prompt: str | None = None
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
        calls: Attempts by request id, in order of first appearance.
        in_flight, max_in_flight: Requests that run or queue, now and at most.
        completed: Complete answers.
        aborted: Requests whose client disconnected before the answer was complete.
        kv_reads: Requested reads of KV caches, by location.

    >>> report = CallReport({"request 1": 2}, in_flight=0, max_in_flight=1, completed=1, aborted=0)
    >>> [id for id, tries in report.calls.items() if tries > 1]
    ['request 1']
    """

    calls: dict[str, int]
    in_flight: int
    max_in_flight: int
    completed: int
    aborted: int
    kv_reads: dict[str, int] = field(default_factory=dict)


def _pairs(values: list[list[Any]]) -> tuple[tuple[Any, Any], ...]:
    return tuple((first, second) for first, second in values)
