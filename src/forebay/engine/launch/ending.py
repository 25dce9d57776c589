"""Ends replicas with everything that they started."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from forebay.engine.launch.processes import kill, terminate, wait_gone
from forebay.engine.launch.registry import Registry, Replica

GRACE_S = 10.0
# A supervisor kills what outlives its grace time, then needs a moment to end itself.
SUPERVISOR_EXTRA_S = 5.0


def end_processes(replicas: Sequence[Replica], grace_s: float = GRACE_S) -> None:
    """Ask all replicas to end, wait, then kill what is left; blocks until nothing is left.

    A supervisor ends its own tree in order; where it is gone, its orphans are asked directly.
    """
    waited: set[psutil.Process] = set()
    for replica in replicas:
        processes = replica.processes()
        supervisor = {process for process in processes if process.pid == replica.pid}
        terminate(supervisor or processes)
        waited |= processes
    left = wait_gone(waited, grace_s + SUPERVISOR_EXTRA_S)
    for replica in replicas:
        left |= replica.processes()
    kill(left)


def end_kept(registry: Registry, grace_s: float = GRACE_S) -> list[Replica]:
    """End all replicas that were handed over, with the orphans of dead ones, and return them.

    Those that a running command owns are left to it.
    """
    kept = [replica for replica in registry.read() if replica.kept]
    end_processes(kept, grace_s)
    with registry.changing() as registered:
        for replica in kept:
            registered.pop(replica.id, None)
    return kept
