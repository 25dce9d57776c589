"""A request as routing sees it: its demand, its cost at a replica, and its prompt as blocks and tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from forebay.records import Request

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What a request needs. Times are on the monotonic clock.

    `blocks` are hashes of the prompt's whole prefix blocks. `session` is for affinity, `tenant` for fairness.
    `due_s` is when the first token should arrive; after `deadline_s` the answer is useless. With
    `keeps_place` a late one is worth as much, so others do not overtake it. Lower `priority` goes first among
    equal due times. `avoid` are replicas at which it failed: it goes there only if no other is available.
    `transferred`: the KV cache is read from another replica. `model`: only replicas that serve it; None: any.
    """

    prompt_tokens: int
    blocks: tuple[int, ...] = ()
    session: str | None = None
    due_s: float = math.inf
    deadline_s: float = math.inf
    priority: int = 0
    tenant: str | None = None
    avoid: tuple[int, ...] = ()
    transferred: bool = False
    keeps_place: bool = False
    model: str | None = None


def new_tokens(demand: RoutingRequest, cached: float) -> float:
    return demand.prompt_tokens - (0.0 if demand.transferred else float(cached))


class InFlightRequest:
    """A request at a replica, as the table counts it.

    `uncached` and `reserved` are tokens: to prefill, and in the KV cache beyond what others share. `work_s`
    is the expected prefill time of the features `terms`.
    """

    __slots__ = (
        "first_token_s",
        "prompt_tokens",
        "replica",
        "reserved",
        "sent_s",
        "terms",
        "uncached",
        "work_s",
    )

    def __init__(self, replica: int, prompt_tokens: int, sent_s: float) -> None:
        self.replica = replica
        self.prompt_tokens = prompt_tokens
        self.sent_s = sent_s
        self.first_token_s = math.nan
        self.uncached = 0.0
        self.reserved = 0.0
        self.work_s = 0.0
        self.terms: tuple[float, ...] = ()


BLOCK_CHARS = 512
MAX_BLOCKS = 4096
CHARS_PER_TOKEN = 4.0
MIN_RATIO, MAX_RATIO = 0.5, 16.0
FADE = 1 / 50
MASK = (1 << 60) - 1


def prompt_text(request: Request) -> str:
    """The text that the prefix cache sees, without the model's own marks between messages."""
    if request.prompt is not None:
        return request.prompt
    return "".join(message_text(message.role, message.content) for message in request.messages)


def message_text(role: str, content: object) -> str:
    parts = content if isinstance(content, list) else (content,)
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return f"\0{role}\0" + "".join(text for text in texts if isinstance(text, str))


def text_blocks(text: str, block_chars: int = BLOCK_CHARS) -> tuple[int, ...]:
    """Hashes of the whole blocks of `text`, at most `MAX_BLOCKS`, each including all text up to its end."""
    data = text[: MAX_BLOCKS * block_chars].encode("utf-32-le", "surrogatepass")
    size = 4 * block_chars
    running = blake2b(digest_size=8)
    blocks = []
    for end in range(size, len(data) + 1, size):
        running.update(data[end - size : end])
        blocks.append(int.from_bytes(running.digest(), "little") & MASK)
    return tuple(blocks)


class TokenEstimate:
    def __init__(self) -> None:
        self.chars_per_token = CHARS_PER_TOKEN

    def tokens(self, chars: int) -> int:
        return max(1, round(chars / self.chars_per_token))

    def learn(self, chars: int, tokens: int) -> None:
        if chars >= BLOCK_CHARS / 2 and tokens > 0:
            seen = min(max(chars / tokens, MIN_RATIO), MAX_RATIO)
            self.chars_per_token += (seen - self.chars_per_token) * FADE
