"""The names of models that clients may use: those that the replicas list, and aliases for them."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from forebay.engine.replica import ServedModel
from forebay.fleet.client import FleetClient
from forebay.gateway.refusal import invalid_value, no_replica, unknown_model

LOG = logging.getLogger("forebay.gateway")


@dataclass(frozen=True, slots=True)
class Alias:
    """A name for one or several models: `to` holds the weight of each. If no replica can take a request for
    the one that was chosen, it goes to `fallback`."""

    to: Mapping[str, float]
    fallback: str | None = None

    def choose(self, key: str) -> str:
        """The model for `key`: the same one for the same key, and each for its share of all keys."""
        point = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little") / (1 << 64)
        ends = list(accumulate(self.to.values()))
        return list(self.to)[min(bisect_right(ends, point * ends[-1]), len(ends) - 1)]


class ModelNames:
    """Which models a name stands for, with the replicas of `fleet`. `absent_s`: how long to wait for the
    first replica if none is up."""

    def __init__(
        self, fleet: FleetClient, aliases: Mapping[str, Alias] | None = None, *, absent_s: float = 0.0
    ) -> None:
        self._fleet = fleet
        self._aliases = aliases or {}
        self._absent_s = absent_s

    async def resolve(self, name: str, key: str) -> tuple[str, ...]:
        """The models that may answer a request for `name`, the best one first; `key` decides between those
        of an alias. The empty name stands for the only base model.

        Waits while no replica is up. The replicas are asked again for a model that none of them lists. Raises
        `Refusal`: 404 for an unknown name, 400 if the empty one is ambiguous, 503 if no replica came or
        serves what an alias stands for, or one has not reported yet what it serves.
        """
        served = self._fleet.served
        if name and name not in self._aliases and served.model not in (None, name):
            # No replica may be started for it, or waited for.
            raise unknown_model(name)
        if not await self._fleet.until_listed(self._absent_s):
            LOG.warning("a request for %r: %s", name[:200], self._fleet.why_none)
            raise no_replica("no replica is in reach; try again later")
        if not name:
            return (self._only_base(),)
        alias = self._aliases.get(name)
        wanted = [name] if alias is None else [alias.choose(key)]
        if alias is not None and alias.fallback not in (None, wanted[0]):
            wanted.append(str(alias.fallback))
        if not served.knows(wanted[0]):
            await served.refresh()
        known = tuple(one for one in wanted if served.knows(one))
        if known:
            return known
        if alias is not None:
            models = " or ".join(wanted)
            raise no_replica(f"no replica serves {models} ({name!r} stands for it); try again later")
        if not served.all_listed:
            message = f"no replica in reach serves {name[:200]!r}, and not all are in reach; try again later"
            raise no_replica(message)
        raise unknown_model(name)

    def context(self, name: str) -> int | None:
        """The context of a model in tokens, if the replicas report it."""
        return next((model.max_model_len for model in self._fleet.models if model.name == name), None)

    def cards(self) -> list[dict[str, Any]]:
        """What `/v1/models` lists: the models with all that their engines report, and the aliases that stand
        for one of them. Raises `Refusal` (503) while no replica has reported its models."""
        served = {model.name: _card(model) for model in self._fleet.models}
        if not served:
            raise no_replica("no replica has reported yet which models it serves; try again later")
        aliases = {}
        for name, alias in self._aliases.items():
            stands_for = next((served[one] for one in (*alias.to, alias.fallback) if one in served), None)
            if stands_for is not None:
                aliases[name] = {**stands_for, "id": name}
        return list((aliases | served).values())

    async def card(self, name: str) -> dict[str, Any]:
        """The entry of one model. Raises `Refusal` (404, or 503 as `cards`)."""
        for again in (True, False):
            found = next((card for card in self.cards() if card["id"] == name), None)
            if found is not None:
                return found
            if again:
                await self._fleet.served.refresh()
        raise unknown_model(name)

    def _only_base(self) -> str:
        base = [model.name for model in self._fleet.models if not model.card.get("parent")]
        if len(base) != 1:
            raise invalid_value("model", f"expected the name of one of {len(base)} models, found none")
        return base[0]


def _card(model: ServedModel) -> dict[str, Any]:
    length = {} if model.max_model_len is None else {"max_model_len": model.max_model_len}
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "forebay", **model.card, **length}
