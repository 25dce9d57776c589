"""The status of a Ray cluster, polled once for all event loops of a process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from forebay.clients.ray.instance import ServeInstance
from forebay.clock import Clock
from forebay.errors import DeployError

FORGET_S = 600.0
Answer = ServeInstance | DeployError | None
"""None: the poll was cancelled."""


@dataclass(frozen=True, slots=True)
class _Look:
    begun_s: float
    answer: Future[Answer] = field(default_factory=Future)


class CachedPoll:
    """Polls by address, each made by the first caller that needs it. Thread-safe.

    A poll that takes `limit_s` is abandoned by its waiters: its thread may be gone.
    """

    def __init__(
        self, look: Callable[[str], Awaitable[ServeInstance]], clock: Clock, *, limit_s: float
    ) -> None:
        self._look = look
        self._clock = clock
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._looks: dict[str, _Look] = {}

    async def instance(self, address: str, fresh_s: float) -> ServeInstance:
        """The status, or the one of a poll that began less than `fresh_s` ago. Raises `DeployError` if that
        poll failed."""
        while True:
            with self._lock:
                now_s = self._clock.monotonic_s()
                found = self._looks.get(address)
                good_for_s = fresh_s if found is None or found.answer.done() else self._limit_s
                if found is None or now_s - found.begun_s >= good_for_s:
                    self._forget(now_s)
                    mine = self._looks[address] = _Look(now_s)
                    break
            answer = await self._wait(found, now_s)
            if isinstance(answer, ServeInstance):
                return answer
            if answer is not None:
                raise DeployError(str(answer))
        return await self._ask(address, mine)

    def _forget(self, now_s: float) -> None:
        for address, look in list(self._looks.items()):
            if now_s - look.begun_s > FORGET_S:
                del self._looks[address]

    async def _wait(self, look: _Look, now_s: float) -> Answer:
        if look.answer.done():
            return look.answer.result()
        left_s = max(0.0, look.begun_s + self._limit_s - now_s)
        try:
            # Shielded: others wait for the same poll.
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(look.answer)), left_s)
        except (asyncio.TimeoutError, TimeoutError):
            return None

    async def _ask(self, address: str, look: _Look) -> ServeInstance:
        answer: Answer = None
        try:
            answer = await self._look(address)
            return answer
        except DeployError as error:
            answer = error
            raise
        finally:
            if answer is None:
                with self._lock:
                    if self._looks.get(address) is look:
                        del self._looks[address]
            look.answer.set_result(answer)
