"""Draws the kills of a recovery run from a seed, before anything starts."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Literal

from forebay.errors import SettingError

KillKind = Literal["job", "engine", "jvm", "flink", "command", "broker", "busy", "mute"]

TURNS: tuple[KillKind, ...] = ("job", "engine", "jvm", "command", "flink")
WITH_BROKER: tuple[KillKind, ...] = ("job", "engine", "jvm", "broker", "command", "flink")
"""The same between topics."""

OUTAGES: tuple[KillKind, ...] = ("busy", "mute")
RESTARTED: frozenset[KillKind] = frozenset(("job", "command"))
"""Kills after which the pipeline must be started again; after the others it continues by itself."""

MAX_RESULTS = 100
AFTER_S = (0.5, 4.0)
DOWN_S = (1.0, 5.0)
OUTAGE_S = 30.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: `after_s` seconds after `after_results` new results since the previous one.

    `down_s`: time until the engine or the broker is restarted. `parallelism`: for the restore; None:
    unchanged.
    """

    kind: KillKind
    after_results: int
    after_s: float
    down_s: float
    parallelism: int | None = None


def plan(
    count: int,
    seed: int,
    *,
    rescale_to: int | None = 2,
    broker: bool = False,
    only: KillKind | None = None,
    outages: int = 0,
) -> tuple[Kill, ...]:
    """`count` kills in turn, with the `broker` if there is one, or of one kind `only`; then `outages` of an
    object store. Deterministic.

    The restart nearest to the middle restores at parallelism `rescale_to`, unless that is None.
    """
    if count < 1:
        raise SettingError(f"kills must be at least 1, found {count}")
    draw = random.Random(seed)
    turns = (WITH_BROKER if broker else TURNS) if only is None else (only,)
    kills = [
        Kill(
            kind=kind,
            after_results=draw.randint(1, MAX_RESULTS),
            after_s=draw.uniform(*AFTER_S),
            down_s=draw.uniform(*DOWN_S),
        )
        for kind in islice(cycle(turns), count)
    ]
    restarts = [i for i, kill in enumerate(kills) if kill.kind == "job"]
    if rescale_to is not None and restarts and only is None:
        middle = min(restarts, key=lambda i: abs(2 * i + 1 - count))
        kills[middle] = replace(kills[middle], parallelism=rescale_to)
    for kind in islice(cycle(OUTAGES), outages):
        kills.append(Kill(kind, draw.randint(1, MAX_RESULTS), draw.uniform(*AFTER_S), OUTAGE_S))
    return tuple(kills)
