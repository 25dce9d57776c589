"""The ports of the engines of a fleet on Ray.

The cluster reports a replica's node address and process id, and the engine's port follows from that id: no
list of addresses is needed.

The replicas import this: it needs the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

IMPORT_PATH = "forebay.deploy.ray.replica:application"
"""The application that `forebay deploy ray` submits; one with another import path is not Forebay's."""
DEPLOYMENT = "engine"
MAX_PORTS = 60_000


@dataclass(frozen=True, slots=True)
class Ports:
    first: int
    many: int

    def of(self, pid: int) -> int:
        """The port of the engine whose replica has this process id. Two replicas on one node very rarely get
        the same one; the later one cannot listen, ends, and is restarted as another process."""
        return self.first + pid % self.many
