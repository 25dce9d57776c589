"""The local engine: its environment, its default model, and replicas that never outlive their owner."""

from forebay.engine.launch.dtype import NumberType
from forebay.engine.launch.local import (
    EngineOptions,
    LocalEngine,
    LocalPlaces,
    best_type,
    ensure_engine,
    local_places,
    local_replicas,
    machine_registry,
)
from forebay.engine.launch.progress import ConsoleProgress, Progress, Silent
from forebay.engine.launch.registry import LocalReplica, ReplicaRegistry, end_kept
from forebay.engine.launch.replicas import Replicas, is_healthy
from forebay.engine.launch.spec import parse_cores

__all__ = [
    "ConsoleProgress",
    "EngineOptions",
    "LocalEngine",
    "LocalPlaces",
    "LocalReplica",
    "NumberType",
    "Progress",
    "ReplicaRegistry",
    "Replicas",
    "Silent",
    "best_type",
    "end_kept",
    "ensure_engine",
    "is_healthy",
    "local_places",
    "local_replicas",
    "machine_registry",
    "parse_cores",
]
