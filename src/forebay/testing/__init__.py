"""Test helpers: scripted engines and servers, a stateful program without Flink, a small Flink cluster.

    from forebay.testing import Machine, ReplicaThread

Only the names listed here are public. May import everything but `bench` and `cli`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.lazy_names import lazy_names

if TYPE_CHECKING:
    from forebay.testing.cluster import local_cluster as local_cluster
    from forebay.testing.engine import ScriptedEngineFactory as ScriptedEngineFactory
    from forebay.testing.replica import CallReport as CallReport
    from forebay.testing.replica import ReplicaProcess as ReplicaProcess
    from forebay.testing.replica import ReplicaScript as ReplicaScript
    from forebay.testing.replica import ReplicaThread as ReplicaThread
    from forebay.testing.script import Faults as Faults
    from forebay.testing.script import Fixed as Fixed
    from forebay.testing.script import Mixture as Mixture
    from forebay.testing.stateful import Machine as Machine
    from forebay.testing.waiting import wait_until as wait_until

_HOMES = {
    "CallReport": "replica",
    "Faults": "script",
    "Fixed": "script",
    "Machine": "stateful",
    "Mixture": "script",
    "ReplicaProcess": "replica",
    "ReplicaScript": "replica",
    "ReplicaThread": "replica",
    "ScriptedEngineFactory": "engine",
    "local_cluster": "cluster",
    "wait_until": "waiting",
}

__all__ = list(_HOMES)

if not TYPE_CHECKING:  # Otherwise a type checker would accept any name.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
