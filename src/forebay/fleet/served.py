"""Which models the replicas serve now: each may load or unload some."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence

from forebay.clock import Clock
from forebay.engine.replica import NO_LIST, ServedModel
from forebay.errors import EngineError
from forebay.fleet.replica import Replica

log = logging.getLogger(__name__)

LIST_S = 10.0
REFRESH_PAUSE_S = 1.0
REFRESH_TIMEOUT_S = 2.0
LEFT_S = 600.0
MAX_LEFT = 10_000


class ServedModels:
    """The models of the replicas in use. With a `model` only that one counts, and replicas without a list are
    assumed to serve it.

    `rows` are the replicas in use, `everyone` all that are listed. `changed` is called with the number of a
    replica whose list has changed.
    """

    def __init__(
        self,
        model: str | None,
        clock: Clock,
        rows: Mapping[int, Replica],
        everyone: Mapping[str, Replica],
        changed: Callable[[int], None],
    ) -> None:
        self.model = model
        self._clock = clock
        self._rows = rows
        self._everyone = everyone
        self._changed = changed
        self._where: dict[str, tuple[int, ...]] = {}
        self._models: tuple[ServedModel, ...] | None = None
        self._left_s: dict[str, float] = {}
        self._refresh: asyncio.Task[None] | None = None
        self._refreshed_s = -math.inf

    def models(self) -> tuple[ServedModel, ...]:
        """Each model once, with the shortest context of its replicas, since a request may go to any."""
        if self._models is not None:
            return self._models
        found: dict[str, ServedModel] = {}
        for replica in self._rows.values():
            for model in replica.models:
                before = found.get(model.name)
                if before is None or (model.max_model_len or math.inf) < (before.max_model_len or math.inf):
                    found[model.name] = model
        self._models = tuple(model for name, model in found.items() if self.model in (None, name))
        return self._models

    def rows(self, model: str) -> Sequence[int]:
        if model not in self._where:
            found = tuple(row for row, replica in self._rows.items() if serves(replica, model))
            if not found:
                return ()
            self._where[model] = found
        return self._where[model]

    def only(self, model: str) -> Sequence[int] | None:
        rows = self.rows(model)
        return None if len(rows) == len(self._rows) else rows

    def with_longer_context(self, row: int, model: str) -> set[int]:
        """Replicas that may take a prompt too long for `row`; an unknown context counts as the longest."""
        here = self._context(row, model)
        return {other for other in self.rows(model) if self._context(other, model) > here}

    def _context(self, row: int, model: str) -> float:
        if row not in self._rows:
            return 0.0
        lengths = (served.max_model_len for served in self._rows[row].models if served.name == model)
        return next(lengths, None) or math.inf

    def knows(self, model: str) -> bool:
        if self.model not in (None, model):
            return False
        left_s = self._left_s.get(model, -math.inf)
        return bool(self.rows(model)) or self._clock.monotonic_s() - left_s < LEFT_S

    @property
    def all_listed(self) -> bool:
        """Whether every replica has listed its models once; only then another model is unknown."""
        return all(replica.models for replica in self._everyone.values())

    def is_due(self, replica: Replica) -> bool:
        in_use = self.model is None and replica.row is not None
        return in_use and self._clock.monotonic_s() >= replica.list_due_s

    async def fetch(self, replica: Replica, timeout_s: float) -> None:
        replica.list_due_s = self._clock.monotonic_s() + LIST_S
        try:
            models = await replica.connection.list_models(timeout_s)
        except NO_LIST:
            if self.model is None:
                raise
            models = (ServedModel(self.model),)
        before, replica.models = replica.models, models
        self._models = None
        if replica.row is not None and names(before) != names(models):
            log.info("replica %s serves %s", replica.url, ", ".join(sorted(names(models))) or "nothing")
            self.note_change(replica)

    def note_change(self, replica: Replica) -> None:
        self._where.clear()
        self._models = None
        if replica.leaving:
            now_s = self._clock.monotonic_s()
            self._left_s = {name: left_s for name, left_s in self._left_s.items() if now_s - left_s < LEFT_S}
            if len(self._left_s) < MAX_LEFT:
                self._left_s |= dict.fromkeys(names(replica.models), now_s)
        elif replica.row is not None:
            self._changed(replica.row)

    async def refresh(self) -> None:
        """Ask all replicas in use for their models, at most once in `REFRESH_PAUSE_S`; concurrent calls share
        one round. A replica that does not answer keeps its last list.
        """
        now_s = self._clock.monotonic_s()
        running = self._refresh is not None and not self._refresh.done()
        if self.model is not None or (not running and now_s < self._refreshed_s + REFRESH_PAUSE_S):
            return
        if not running:
            self._refreshed_s = now_s
            self._refresh = asyncio.get_running_loop().create_task(self._fetch_all())
        assert self._refresh is not None
        await asyncio.shield(self._refresh)

    async def close(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.gather(self._refresh, return_exceptions=True)

    async def _fetch_all(self) -> None:
        async def fetch(replica: Replica) -> None:
            try:
                await self.fetch(replica, REFRESH_TIMEOUT_S)
            except EngineError as error:
                log.debug("replica %s keeps its list of models: %s", replica.url, error)

        replicas = [replica for replica in self._everyone.values() if replica.row is not None]
        await asyncio.gather(*map(fetch, replicas))


def names(models: Sequence[ServedModel]) -> frozenset[str]:
    return frozenset(model.name for model in models)


def serves(replica: Replica, model: str | None) -> bool:
    return model is None or any(served.name == model for served in replica.models)
