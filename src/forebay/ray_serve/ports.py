"""Where the engines of a fleet on Ray listen. What the cluster tells of a replica is its node's address and
its process id, and the engine's port comes from that id: nothing has to keep a list of addresses.

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
    """The ports that engines of an application listen on."""

    first: int
    many: int

    def of(self, pid: int) -> int:
        """The port of the engine whose replica has this process id. Two replicas on one node share one very
        rarely; the later one cannot listen, ends, and is started again as another process."""
        return self.first + pid % self.many
