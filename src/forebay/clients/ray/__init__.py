"""Ray Serve by its REST interface, without Ray. Replicas import this file: standard library only."""

from __future__ import annotations

from dataclasses import dataclass

IMPORT_PATH = "forebay.deploy.ray.replica:application"
"""An application with another import path is not Forebay's."""
DEPLOYMENT = "engine"
MAX_PORTS = 60_000


@dataclass(frozen=True, slots=True)
class Ports:
    first: int
    many: int

    def of(self, pid: int) -> int:
        """If two replicas on one node get the same port, the later one cannot listen and is restarted as
        another process."""
        return self.first + pid % self.many
