"""Replicas that are given once and for all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forebay.fleet.replicas.base import checked


@dataclass(frozen=True)
class FixedReplicas:
    """A fixed list. Raises `SettingError` at construction for a URL that cannot be a replica's."""

    given: tuple[str, ...]
    every_s: float = math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", checked(self.given, where="the list of replicas"))

    async def urls(self) -> tuple[str, ...]:
        return self.given
