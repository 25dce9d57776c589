"""A request as routing sees it: what it asks of a replica, and what it charges the one that took it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""One number per replica."""


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What a request asks of a replica. Moments are on the monotonic clock, in seconds.

    `blocks` are the hashes of the prompt's whole prefix blocks, each standing for all that precedes it.
    `session` is what affinity is kept by, `tenant` what fairness is kept by; None belongs to nobody.
    `due_s` is when the first token should come; `deadline_s`, after which the answer is worth nothing.
    Of two that are due at the same moment, the lower `priority` goes first. `avoid` are the numbers of
    replicas that it is not to go to while another is available: it has failed there.
    """

    prompt_tokens: int
    blocks: tuple[int, ...] = ()
    session: str | None = None
    due_s: float = math.inf
    deadline_s: float = math.inf
    priority: int = 0
    tenant: str | None = None
    avoid: tuple[int, ...] = ()


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
