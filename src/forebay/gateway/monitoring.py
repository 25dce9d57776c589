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
    fleet: FleetClient, prefill: FleetClient | None, *, draining: bool, in_flight: int
) -> tuple[int, dict[str, object]]:
    """Status and body of `/health`."""
    replicas = _counts(fleet)
    state = "draining" if draining else "ok" if replicas["available"] else "no_replica"
    return 200 if state == "ok" else 503, {
        "status": state,
        "replicas": replicas,
        **({} if prefill is None else {"prefill": _counts(prefill)}),
        "in_flight": in_flight,
    }


def _counts(fleet: FleetClient) -> dict[str, int]:
    why = fleet.replicas().values()
    return {"available": sum(not one for one in why), "known": len(why)}
