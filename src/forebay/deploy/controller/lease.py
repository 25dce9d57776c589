"""Which of several controllers scales a Deployment: the holder of its Lease, as in Kubernetes.

The holder renews the Lease every few seconds. A controller that sees no change for the Lease's length, by
its own clock only, takes over. Each write names the version read, so one of two simultaneous takeovers fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from forebay.clock import Clock
from forebay.errors import DeployError

if TYPE_CHECKING:
    from forebay.deploy.controller.cluster import ClusterCalls

LENGTH_S = 15
RENEW_S = 4.0
MAX_LENGTH_S = 3600


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A Lease as it was read. `holder` is empty if nobody has it."""

    version: str
    holder: str
    length_s: float
    transitions: int

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> LeaseState:
        try:
            spec = body.get("spec") or {}
            length_s = float(spec.get("leaseDurationSeconds") or LENGTH_S)
            return cls(
                str(body["metadata"]["resourceVersion"]),
                str(spec.get("holderIdentity") or ""),
                min(length_s, MAX_LENGTH_S),
                int(spec.get("leaseTransitions") or 0),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DeployError(f"the API server's Lease has an unknown format: {error}") from None


@dataclass(slots=True)
class Leadership:
    """Whether this controller scales. `name`: the Lease's; `identity`: unique to this controller."""

    calls: ClusterCalls
    name: str
    identity: str
    clock: Clock
    holder: str = field(default="", init=False)
    """The holder at the last read."""
    _seen: LeaseState | None = field(default=None, init=False)
    _seen_s: float = field(default=-math.inf, init=False)
    _renewed_s: float = field(default=-math.inf, init=False)

    def held(self) -> bool:
        """Renew or take the Lease; returns whether it is held. Raises `DeployError`."""
        now_s = self.clock.monotonic_s()
        if now_s - self._renewed_s < RENEW_S:
            return True
        found = self.calls.lease(self.name)
        if found is None:
            self._write(None, now_s)
            return True
        if self._seen is None or found.version != self._seen.version:
            self._seen, self._seen_s = found, now_s
        self.holder = found.holder
        if found.holder not in ("", self.identity) and now_s - self._seen_s <= found.length_s:
            self._renewed_s = -math.inf
            return False
        self._write(found, now_s)
        return True

    def release(self) -> None:
        """Release the Lease if this controller holds it. Raises `DeployError`."""
        found = self.calls.lease(self.name) if self._renewed_s > -math.inf else None
        self._renewed_s = -math.inf
        if found is not None and found.holder == self.identity:
            self.calls.write_lease(self.name, found, self._spec("", found))

    def _write(self, found: LeaseState | None, now_s: float) -> None:
        self._renewed_s = -math.inf
        self.calls.write_lease(self.name, found, self._spec(self.identity, found))
        self.holder, self._renewed_s = self.identity, now_s

    def _spec(self, holder: str, found: LeaseState | None) -> dict[str, Any]:
        at = datetime.fromtimestamp(self.clock.wall_ms() / 1000, timezone.utc)
        time = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = found is not None and found.holder == holder
        changes = 0 if found is None else found.transitions + (not mine and bool(holder))
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": LENGTH_S,
            "renewTime": time,
            "leaseTransitions": changes,
            **({} if mine else {"acquireTime": time}),
        }
