"""Which replica a program on a Ray cluster gets, estimated from a handle's own data.

A handle sees no answers: first tokens are assumed at their expected time, and the oldest requests as ended
if their replica reports fewer. Needs only the standard library and numpy.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.clock import Clock
from forebay.deploy.ray.stats import STATS_PERIOD_S, ReplicaSeen
from forebay.fleet.estimate import ExpectedTtft
from forebay.fleet.replica_table import ReplicaLimits, ReplicaTable
from forebay.fleet.routing_request import (
    BLOCK_CHARS,
    CHARS_PER_TOKEN,
    InFlightRequest,
    RoutingRequest,
    Vector,
    message_text,
    text_blocks,
)
from forebay.records import ReplicaLoad

SEEN_S = 2 * STATS_PERIOD_S
"""Age from which a request is in its replica's report."""
MAX_S = 60.0
"""Assumed duration of a request if its replica reports nothing."""
WORK_S = 0.1
"""Assumed prefill time of others' requests: a thousand tokens."""


@dataclass(slots=True, eq=False)
class Placement:
    demand: RoutingRequest
    charge: InFlightRequest | None = None


@dataclass(slots=True)
class _Row:
    sent: deque[InFlightRequest] = field(default_factory=deque)
    queued: deque[InFlightRequest] = field(default_factory=deque)
    reported: float = math.inf


class ReplicaChooser:
    """For one event loop. Call `update` with the replicas; then per request `place`, `rank` (repeatedly),
    and `settle` once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._policy = ExpectedTtft()
        self._fleet = ReplicaTable([], block_tokens=round(BLOCK_CHARS / CHARS_PER_TOKEN), work_s=WORK_S)
        self._numbers: dict[str, int] = {}
        self._rows: dict[int, _Row] = {}

    def update(self, replicas: Sequence[ReplicaSeen]) -> None:
        fleet, now_s = self._fleet, self._clock.monotonic_s()
        self._go_on(now_s)
        here = {replica.name for replica in replicas}
        for name in [name for name in self._numbers if name not in here]:
            self._leave(name, now_s)
        for replica in replicas:
            number = self._numbers.get(replica.name)
            if number is None:
                number = fleet.add(ReplicaLimits(replica.name, replica.kv_tokens))
                self._numbers[replica.name] = number
                self._rows[number] = _Row()
            fleet.report(number, ReplicaLoad(now_s, replica.running, replica.waiting))
            reported = math.inf if replica.running is None else replica.running + (replica.waiting or 0.0)
            self._rows[number].reported = reported
        alive = [replica.name for replica in replicas if not replica.away]
        for replica in replicas:
            # If all are away, they are equal.
            fleet.set_available(self._numbers[replica.name], not alive or not replica.away)

    def place(self, text: str, given_tokens: int = 0) -> Placement:
        tokens = round(len(text) / CHARS_PER_TOKEN) + given_tokens
        return Placement(RoutingRequest(max(1, tokens), text_blocks(text)))

    def rank(self, placement: Placement) -> list[list[str]]:
        """Best, next best, others. The request counts at the best one until settled."""
        fleet, demand, now_s = self._fleet, placement.demand, self._clock.monotonic_s()
        self._end(placement, now_s)
        self._go_on(now_s)
        cached = fleet.cached(demand)
        best = self._policy.choose(demand, cached, fleet, now_s)
        with fleet.without((best,)):
            next_best = self._policy.choose(demand, cached, fleet, now_s)
        # The prefix index records its prompt only when it is sent.
        placement.charge = self._take(best, RoutingRequest(demand.prompt_tokens), cached, now_s)
        first = dict.fromkeys((best, next_best))
        others = [name for name, number in self._numbers.items() if number not in first]
        return [*([fleet.names[number]] for number in first), *([others] if others else [])]

    def settle(self, placement: Placement, name: str | None) -> None:
        """None: the request was not sent."""
        now_s = self._clock.monotonic_s()
        number = None if name is None else self._numbers.get(name)
        charge = placement.charge
        if number is not None and charge is not None and charge.replica == number:
            self._fleet.index.insert(number, placement.demand.blocks)
            placement.charge = None
            return
        self._end(placement, now_s)
        if number is not None:
            self._take(number, placement.demand, self._fleet.cached(placement.demand), now_s)

    def in_flight(self, name: str) -> int:
        return len(self._rows[self._numbers[name]].sent)

    def _take(self, number: int, demand: RoutingRequest, cached: Vector, now_s: float) -> InFlightRequest:
        row, charge = self._rows[number], self._fleet.take(number, demand, cached, now_s)
        row.sent.append(charge)
        row.queued.append(charge)
        return charge

    def _end(self, placement: Placement, now_s: float) -> None:
        charge, placement.charge = placement.charge, None
        row = None if charge is None else self._rows.get(charge.replica)
        # A replica that left may have a successor with the same number.
        if charge is not None and row is not None and charge in row.sent:
            row.sent.remove(charge)
            self._finish(row, charge, now_s)

    def _finish(self, row: _Row, charge: InFlightRequest, now_s: float) -> None:
        if charge in row.queued:
            row.queued.remove(charge)
        self._fleet.finish(charge, now_s)

    def _leave(self, name: str, now_s: float) -> None:
        number = self._numbers.pop(name)
        row = self._rows.pop(number)
        for charge in row.sent:
            self._finish(row, charge, now_s)
        self._fleet.remove(number)

    def _go_on(self, now_s: float) -> None:
        fleet = self._fleet
        for number, row in self._rows.items():
            while row.queued and (due_s := float(fleet.head_until_s[number])) <= now_s:
                fleet.assume_first_token(row.queued.popleft(), due_s)
            # Oldest first: while there are too many, the first one has ended if it is old enough to be
            # reported.
            most, age_s = (int(row.reported), SEEN_S) if row.reported < math.inf else (0, MAX_S)
            while len(row.sent) > most and row.sent[most].sent_s <= now_s - age_s:
                self._finish(row, row.sent.popleft(), now_s)


def asked_text(values: Sequence[object]) -> tuple[str, int]:
    """The prompt among a call's arguments, and its further tokens given as numbers."""
    for value in values:
        found = value
        if isinstance(value, bytes) or (isinstance(value, str) and value.lstrip()[:1] == "{"):
            try:
                found = json.loads(value)
            except ValueError:
                continue
        if isinstance(found, str):
            return found, 0
        if isinstance(found, Mapping) and (text := _body_text(found)) is not None:
            return text
    return "", 0


def _body_text(body: Mapping[str, Any]) -> tuple[str, int] | None:
    messages, prompt = body.get("messages"), body.get("prompt", body.get("input"))
    if isinstance(messages, list):
        given = (message for message in messages if isinstance(message, dict))
        return "".join(message_text(str(each.get("role")), each.get("content")) for each in given), 0
    if isinstance(prompt, str):
        return prompt, 0
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            return "", len(prompt)
        return "\0".join(one for one in prompt if isinstance(one, str)), 0
    return None
