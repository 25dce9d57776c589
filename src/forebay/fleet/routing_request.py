"""A request as routing sees it: what it asks of a replica, what it charges the one that took it, and its
prompt as prefix blocks and tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from forebay.records import Request

Vector = NDArray[np.float64]
"""One number per replica."""


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What a request asks of a replica. Moments are on the monotonic clock, in seconds.

    `blocks` are the hashes of the prompt's whole prefix blocks, each standing for all that precedes it.
    `session` is what affinity is kept by, `tenant` what fairness is kept by; None belongs to nobody.
    `due_s` is when the first token should come; `deadline_s`, after which the answer is worth nothing. With
    `keeps_place` one that comes later is worth as much: what is still in time does not go before it.
    Of two that are due at the same moment, the lower `priority` goes first. `avoid` are the numbers of
    replicas that it is not to go to while another is available: it has failed there. `transferred`: the KV
    cache of its prompt comes from another replica, so that nothing is prefilled, whoever takes it. `model`:
    only replicas that serve it may take the request; None: any of them.
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
    """How many tokens the prompt takes in the KV cache of a replica that has `cached` of them, or gets them
    from another one."""
    return demand.prompt_tokens - (0.0 if demand.transferred else float(cached))


class ReplicaCharge:
    """What the fleet keeps of a request from the moment it is sent until it ends.

    `uncached` and `reserved` are tokens: those of its prompt that the replica must prefill, and those that it
    takes in the KV cache beyond what others share with it. `work_s` is the time that its prefill was expected
    to take, of the features `terms`.
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
"""Characters of a prefix block: about eight of vLLM's blocks. A shared prefix is known to that exactly."""
MAX_BLOCKS = 4096
"""Blocks that are hashed of a prompt at most, the first ones: two million characters."""
CHARS_PER_TOKEN = 4.0
LEAST, MOST = 0.5, 16.0
FADE = 1 / 50
MASK = (1 << 60) - 1


def prompt_text(request: Request) -> str:
    """What the prefix cache sees of a request, near enough: the model's own marks between messages are not
    known here, and do not matter where they are the same for all."""
    if request.prompt is not None:
        return request.prompt
    return "".join(message_text(message.role, message.content) for message in request.messages)


def message_text(role: str, content: object) -> str:
    """One message of a chat as `prompt_text` has it. `content` is what an OpenAI client sends: a text, or a
    list of parts, of which those that are no text are left out."""
    parts = content if isinstance(content, list) else (content,)
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return f"\0{role}\0" + "".join(text for text in texts if isinstance(text, str))


def text_blocks(text: str, block_chars: int = BLOCK_CHARS) -> tuple[int, ...]:
    """The whole blocks of `text` by hash, each standing for all the text up to its end.

    Two texts share exactly the blocks of their common beginning. Linear in the text, at most `MAX_BLOCKS`.
    """
    data = text.encode("utf-32-le", "surrogatepass")
    size = 4 * block_chars
    running = blake2b(digest_size=8)
    blocks = []
    for end in range(size, min(len(data), MAX_BLOCKS * size) + 1, size):
        running.update(data[end - size : end])
        blocks.append(int.from_bytes(running.digest(), "little") & MASK)
    return tuple(blocks)


class TokenEstimate:
    """Characters per token, learned from what replicas count. Starts at 4, stays from 0.5 to 16."""

    def __init__(self) -> None:
        self.chars_per_token = CHARS_PER_TOKEN

    def tokens(self, chars: int) -> int:
        """About how many tokens so much text has; at least 1."""
        return max(1, round(chars / self.chars_per_token))

    def learn(self, chars: int, tokens: int) -> None:
        """A prompt of `chars` characters had `tokens` tokens. Short ones, mostly template, say nothing."""
        if chars >= BLOCK_CHARS / 2 and tokens > 0:
            seen = min(max(chars / tokens, LEAST), MOST)
            self.chars_per_token += (seen - self.chars_per_token) * FADE
