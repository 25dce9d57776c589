"""One session, one replica, as long as the fleet stays."""

from __future__ import annotations

from hashlib import blake2b

from forebay.fleet.base import Demand, Vector
from forebay.fleet.state import Fleet


class SessionAffinity:
    """The replica that a session's hash falls to, by highest random weight (Thaler and Ravishankar, 1998).

    When a replica comes or goes, only the sessions move that it takes or had: 1/n of them. A request without
    a session is kept by its prompt's first block; one without any goes to whoever has fewest requests.
    """

    def choose(self, demand: Demand, cached: Vector, fleet: Fleet, now_s: float) -> int:
        if demand.session is not None:
            key = demand.session.encode("utf-8", "surrogatepass")
        elif demand.blocks:
            key = demand.blocks[0].to_bytes(8, "little")
        else:
            requests = fleet.requests.tolist()
            return min(fleet.numbers(), key=requests.__getitem__)
        best, weight = -1, b""
        for number in fleet.numbers():
            name = fleet.names[number].encode()
            if len(name) > blake2b.MAX_KEY_SIZE:
                name = blake2b(name).digest()
            mine = blake2b(key, digest_size=8, key=name).digest()
            if mine > weight or best < 0:
                best, weight = number, mine
        return best
