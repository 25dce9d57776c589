"""The routing policy `sticky`: sessions stay where they are, unless it is too full there."""

from zlib import crc32

from forebay import extend

MAX_MORE = 8


class Sticky:
    """The replica that a session's hash falls to, unless it has eight requests more than another."""

    def __init__(self, seed: int) -> None:
        pass

    def choose(
        self, demand: extend.RoutingRequest, cached: extend.Vector, fleet: extend.FleetState, now_s: float
    ) -> int:
        replicas = fleet.numbers()
        least = min(replicas, key=lambda number: fleet.requests[number])
        if demand.session is None:
            return least
        home = max(replicas, key=lambda number: crc32(f"{demand.session} {fleet.names[number]}".encode()))
        return home if fleet.requests[home] - fleet.requests[least] < MAX_MORE else least
