"""Forebay's router for programs that call a fleet by a handle of Ray Serve, which pickles these classes by
value."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from weakref import WeakKeyDictionary

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from forebay.clock import SystemClock
from forebay.deploy.ray.choice import Placement, ReplicaChooser, asked_text
from forebay.deploy.ray.stats import ReplicaSeen


class FleetRouter(RequestRouter):  # type: ignore[misc]
    """Never raises: that would hang the request. After a failure, Serve chooses the replica with the fewest
    requests."""

    def initialize_state(self, **kwargs: Any) -> None:
        self._chooser = ReplicaChooser(SystemClock())
        self._placements: WeakKeyDictionary[asyncio.Future[Any], Placement] = WeakKeyDictionary()
        self._known: list[RunningReplica] | None = None
        self._logged = False

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Called by Serve, repeatedly while no replica has a free place."""
        try:
            if pending_request is None:
                return [candidate_replicas]
            # Otherwise Serve would retry at once.
            pending_request.routing_context.should_backoff = True
            return self._ranked(candidate_replicas, pending_request) if candidate_replicas else []
        except Exception:
            self._notify()
            return [candidate_replicas]

    def _ranked(
        self, candidates: list[RunningReplica], pending: PendingRequest
    ) -> list[list[RunningReplica]]:
        # Serve makes a new list whenever a replica or its report changes.
        if candidates is not self._known:
            self._chooser.update(
                [
                    ReplicaSeen.parse(each.replica_id.unique_id, each.replica_metadata, each.routing_stats)
                    for each in candidates
                ]
            )
            self._known = candidates
        placement = self._placements.get(pending.future)
        if placement is None:
            placement = self._chooser.place(*asked_text([*pending.args, *pending.kwargs.values()]))
            self._placements[pending.future] = placement
            pending.future.add_done_callback(self._settle)
        by_name = {each.replica_id.unique_id: each for each in candidates}
        return [[by_name[name] for name in rank] for rank in self._chooser.rank(placement)]

    def _settle(self, future: asyncio.Future[Any]) -> None:
        try:
            placement = self._placements.pop(future, None)
            if placement is not None:
                gone = future.cancelled() or future.exception() is not None
                self._chooser.settle(placement, None if gone else future.result().replica_id.unique_id)
        except Exception:
            self._notify()

    def _notify(self) -> None:
        if not self._logged:
            self._logged = True
            logging.getLogger("ray.serve").exception("Forebay's router failed, and Serve chooses instead")
