"""The gateway's state, and who may see it."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.fleet.client import FleetClient
from forebay.gateway.keys import KeyRing


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Who may see `/health` and `/metrics`: whoever reaches `port`, if it is not None, and has the one key
    of `keys`, if there are any."""

    keys: KeyRing | None = None
    port: int | None = None

    @property
    def closed(self) -> bool:
        """Whether not everybody sees them."""
        return self.keys is not None or self.port is not None


def health_of(
    fleet: FleetClient, prefill: FleetClient | None, *, draining: bool, in_flight: int, waits: bool
) -> tuple[int, dict[str, object]]:
    """Status and body of `/health`. `waits`: requests wait until a replica is up, so that the gateway takes
    them without one."""
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
