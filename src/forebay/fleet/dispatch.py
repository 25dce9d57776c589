"""What is to be routed, and what it means to route."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forebay.fleet.state import Fleet
    from forebay.fleet.ticket import ReplicaCharge

Vector = NDArray[np.float64]
"""One number per replica."""

Item = TypeVar("Item")


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


class Policy(Protocol):
    """A rule that says which replica takes a request.

    It sees the fleet and changes nothing in it. `choose` is only called while some replica is available, and
    gives the number of one that is. A policy may keep state of its own (a turn, a random generator); the
    same calls in the same order give the same choices.
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        """`cached`: for each replica, how many of the prompt's tokens its prefix cache should hold."""
        ...


class Dispatcher(Protocol[Item]):
    """Says when each request goes where.

    The owner calls `add` for each request, and `ready` after that, after each first token and each end of a
    request, when a replica becomes available, and when `wake_s` has come; it sends what `ready` gives at
    once. `item` is whatever the owner knows the request by.
    """

    wake_s: float
    """When `ready` is to be called although nothing has happened; infinite where that is not needed."""

    def add(self, item: Item, demand: RoutingRequest, now_s: float) -> None: ...

    def ready(self, now_s: float) -> list[tuple[Item, ReplicaCharge]]:
        """The requests to send now, in order, each counted as in flight at its ticket's replica."""
        ...

    def remove(self, item: Item) -> None:
        """Nobody waits for this request any more. One that does not wait here is passed over."""
        ...

    def expired(self) -> list[Item]:
        """The requests that were given up since the last call: their deadline passed while they waited."""
        ...

    def __len__(self) -> int:
        """How many requests wait."""
        ...
