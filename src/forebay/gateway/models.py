"""Model names for clients: those that replicas list, and aliases."""

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
    """Another name for the models in `to`, by weight; `fallback` is used if no replica of the chosen one is
    free.
    """

    to: Mapping[str, float]
    fallback: str | None = None

    def choose(self, key: str) -> str:
        point = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little") / (1 << 64)
        ends = list(accumulate(self.to.values()))
        return list(self.to)[min(bisect_right(ends, point * ends[-1]), len(ends) - 1)]


class ModelNames:
    def __init__(
        self, fleet: FleetClient, aliases: Mapping[str, Alias] | None = None, *, absent_s: float = 0.0
    ) -> None:
        self._fleet = fleet
        self._aliases = aliases or {}
        self._absent_s = absent_s

    async def resolve(self, name: str, key: str) -> tuple[str, ...]:
        """The models that may answer a request for `name` (empty: the only base model), best first.

        `key` chooses among an alias's models. Waits while no replica is up. Raises `Refusal`: 404 for an
        unknown name, 400 for an ambiguous empty one, 503 if no replica is up, none serves the alias's models,
        or some have not reported theirs.
        """
        served = self._fleet.served
        if name and name not in self._aliases and served.model not in (None, name):
            # An unknown name must neither start a replica nor wait for one.
            raise unknown_model(name)
        if not await self._fleet.until_listed(self._absent_s):
            LOG.warning("a request for %r: %s", name[:200], self._fleet.why_none)
            raise no_replica("no replica is reachable; try again later")
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
            message = f"no reachable replica serves {name[:200]!r}, not all are reachable; try again later"
            raise no_replica(message)
        raise unknown_model(name)

    def context(self, name: str) -> int | None:
        return next((model.max_model_len for model in self._fleet.models if model.name == name), None)

    def cards(self) -> list[dict[str, Any]]:
        """The list for `/v1/models`: models as engines report them, and aliases. Raises `Refusal` (503) until
        a replica has reported.
        """
        served = {model.name: _card(model) for model in self._fleet.models}
        if not served:
            raise no_replica("no replica has reported yet which models it serves; try again later")
        aliases = {}
        for name, alias in self._aliases.items():
            stands_for = next((served[one] for one in (*alias.to, alias.fallback) if one in served), None)
            if stands_for is not None:
                aliases[name] = {**stands_for, "id": name}
        return list((aliases | served).values())

    def listing(self) -> dict[str, Any]:
        return {"object": "list", "data": self.cards()}

    async def card(self, name: str) -> dict[str, Any]:
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
