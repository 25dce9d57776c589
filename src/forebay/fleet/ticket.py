"""One request at one replica."""

from __future__ import annotations

import math


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
