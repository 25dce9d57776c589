"""The gateway's health, and who may see it."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.fleet.client import FleetClient
from forebay.gateway.keys import KeyRing


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Who may see `/health` and `/metrics`: clients of `port` (None: any) with the key in `keys`, if any."""

    keys: KeyRing | None = None
    port: int | None = None

    @property
    def closed(self) -> bool:
        return self.keys is not None or self.port is not None


def health_of(
    fleet: FleetClient, prefill: FleetClient | None, *, draining: bool, in_flight: int, waits: bool
) -> tuple[int, dict[str, object]]:
    """Status and body of `/health`. `waits`: requests may wait for a first replica."""
    replicas = _counts(fleet)
    state = "draining" if draining else "ok" if replicas["available"] else "no_replica"
    healthy = state == "ok" or (state == "no_replica" and waits)
    return 200 if healthy else 503, {
        "status": state,
        "replicas": replicas,
        **({} if prefill is None else {"prefill": _counts(prefill)}),
        "in_flight": in_flight,
    }


def _counts(fleet: FleetClient) -> dict[str, int]:
    why = fleet.replicas().values()
    return {"available": sum(not one for one in why), "known": len(why)}
