"""Flink options that keep few records between the operators of a job."""

from __future__ import annotations

from collections.abc import Mapping

FEW_RECORDS: Mapping[str, str] = {
    # Records between operators leave at the engine's pace, and after a restore no checkpoint completes, and
    # nothing is committed, until those that the last one caught have left. Nor does anybody count them among
    # those that wait in a topic. Keep them few, also in the first half minute, before the debloater has
    # measured the pace.
    "taskmanager.memory.segment-size": "4 kb",
    "taskmanager.network.memory.buffer-debloat.enabled": "true",
    "taskmanager.network.memory.buffer-debloat.target": "300 ms",
}
