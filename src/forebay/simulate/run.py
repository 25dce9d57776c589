"""Requests through a fleet of simulated replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from heapq import heappop, heappush

from forebay.fleet.dispatch import Dispatcher
from forebay.fleet.routing_request import ReplicaCharge
from forebay.fleet.state import Fleet, ReplicaLimits
from forebay.records import ReplicaLoad
from forebay.simulate.engine import EngineModel
from forebay.simulate.replica import Sequence, SimulatedReplica


def fleet_of(models: Many[EngineModel]) -> Fleet:
    """A fleet that knows of each replica what a vLLM server says of itself."""
    limits = [
        ReplicaLimits(str(number), model.kv_tokens, model.max_num_seqs) for number, model in enumerate(models)
    ]
    return Fleet(limits, block_tokens=models[0].block_tokens)


class Simulation:
    """Replicas, the fleet that knows them, and the dispatcher that sends requests to them.

    With `report_every_s`, replicas report their load at the first arrival after each such time. The same
    requests give the same moments, bit for bit.
    """

    def __init__(
        self,
        models: Many[EngineModel],
        fleet: Fleet,
        dispatcher: Dispatcher[Sequence],
        *,
        report_every_s: float | None = None,
        watch_every_s: float | None = None,
    ) -> None:
        self.replicas = [SimulatedReplica(model) for model in models]
        self.fleet = fleet
        self.dispatcher = dispatcher
        self._report_every_s = report_every_s
        self._report_s = math.inf if report_every_s is None else 0.0
        self.given_up: list[Sequence] = []
        """Requests whose deadline passed while they waited to be sent."""
        self.watched: list[tuple[float, int]] = []
        """With `watch_every_s`, how many requests waited in all engines, at the first arrival after each."""
        self._watch_every_s = watch_every_s
        self._watch_s = math.inf if watch_every_s is None else 0.0
        self._tickets: dict[Sequence, ReplicaCharge] = {}
        self._due: list[tuple[float, int]] = []

    def run(self, requests: Many[Sequence]) -> None:
        """Serve `requests`, ordered by arrival, to their end. Fills in their moments."""
        dispatcher, due = self.dispatcher, self._due
        add, until = dispatcher.add, self._run_until
        for request in requests:
            now_s = request.arrived_s
            if (due and due[0][0] < now_s) or dispatcher.wake_s < now_s:
                until(now_s)
            if now_s >= self._report_s:
                self._report(now_s)
            if now_s >= self._watch_s:
                self._watch(now_s)
            add(request, request.demand, now_s)
            self._send(now_s)
        until(math.inf)
        self.given_up += dispatcher.expired()

    def _run_until(self, end_s: float) -> None:
        """Everything that happens before `end_s`."""
        due, replicas, tickets = self._due, self.replicas, self._tickets
        dispatcher, fleet = self.dispatcher, self.fleet
        first: list[Sequence] = []
        finished: list[Sequence] = []
        while True:
            wake_s = dispatcher.wake_s
            if not due or wake_s < due[0][0]:
                if wake_s >= end_s:
                    return
                self._send(wake_s)
                continue
            if due[0][0] >= end_s:
                return
            now_s, number = heappop(due)
            replica = replicas[number]
            if replica.next_s != now_s:
                continue  # its run was cut short since
            replica.fire(first, finished)
            if replica.next_s < math.inf:
                heappush(due, (replica.next_s, number))
            if first or finished:
                for sequence in first:
                    fleet.first_token(tickets[sequence], now_s)
                for sequence in finished:
                    fleet.finish(tickets.pop(sequence), now_s, sequence.output_tokens)
                first.clear()
                finished.clear()
                if len(dispatcher):
                    self._send(now_s)

    def _send(self, now_s: float) -> None:
        for sequence, ticket in self.dispatcher.ready(now_s):
            self._tickets[sequence] = ticket
            number = sequence.replica = ticket.replica
            replica = self.replicas[number]
            before_s = replica.next_s
            replica.submit(sequence, now_s)
            if replica.next_s != before_s:
                heappush(self._due, (replica.next_s, number))

    def _watch(self, now_s: float) -> None:
        assert self._watch_every_s is not None
        self._watch_s = now_s + self._watch_every_s
        self.watched.append((now_s, sum(replica.waiting for replica in self.replicas)))

    def _report(self, now_s: float) -> None:
        assert self._report_every_s is not None
        self._report_s = now_s + self._report_every_s
        for number, replica in enumerate(self.replicas):
            load = ReplicaLoad(now_s, replica.running, replica.waiting, replica.kv_usage)
            self.fleet.report(number, load)
