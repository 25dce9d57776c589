"""Requests in groups that share a long prefix: a replica that has answered one of a group answers
the next sooner."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from forebay.bench.load.schedules import Poisson
from forebay.records import Message, Request, Sampling

MODEL = "small"
WORDS = "all talk of the harbour today, and of the ships that wait for the tide "


@dataclass(frozen=True)
class PrefixLoad:
    """`requests` at `rate_per_s` on average, with exponential gaps; the first `warm_up` fill the caches and
    do not count.

    Each belongs to one of `groups`, has `prefix_chars` of that group and `own_chars` of its own, and an
    answer of `max_tokens`. Another `nonce` gives other texts in the same groups at the same times.
    """

    requests: int = 360
    rate_per_s: float = 30.0
    warm_up: int = 80
    groups: int = 16
    prefix_chars: int = 4096
    own_chars: int = 512
    max_tokens: int = 32
    seed: int = 1
    nonce: str = ""

    @cached_property
    def due_s(self) -> list[float]:
        return Poisson(self.rate_per_s).due_s(self.requests, Random(f"schedule {self.seed}"))

    @cached_property
    def group_of(self) -> list[int]:
        return Random(f"groups {self.seed}").choices(range(self.groups), k=self.requests)

    def id(self, index: int) -> str:
        return f"{self.nonce}-{index}"

    def texts(self, index: int) -> tuple[str, str]:
        """The shared part, and the request's own."""
        shared = f"Group {self.group_of[index]} of {self.nonce}: "
        own = f"Post {index} of {self.nonce}: "
        return _filled(shared, self.prefix_chars), _filled(own, self.own_chars)

    def body(self, index: int) -> dict[str, Any]:
        """The request as a streamed chat."""
        system, user = self.texts(index)
        return {
            "model": MODEL,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def request(self, index: int) -> Request:
        """The request as a pipeline sends it."""
        system, user = self.texts(index)
        return Request(
            id=self.id(index),
            model=MODEL,
            messages=(Message("system", system), Message("user", user)),
            sampling=Sampling(max_tokens=self.max_tokens, extra={"ignore_eos": True}),
        )


def _filled(head: str, chars: int) -> str:
    return (head + WORDS * (chars // len(WORDS) + 1))[:chars]
