"""An `Engine` over a fleet: a call goes to the replica that suits it, and to another where that one fails."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from forebay.clock import Clock, SystemClock
from forebay.errors import AttemptTimeout, EngineError, Overloaded, RateLimited, ServerFault, Unreachable
from forebay.fleet.client import FleetClient
from forebay.fleet.config import FleetConfig
from forebay.fleet.lease import MISPLACED, Lease
from forebay.fleet.prompts import prompt_text
from forebay.records import Completion, Request

MAX_REMEMBERED = 10_000
ELSEWHERE = (Unreachable, Overloaded, RateLimited, *MISPLACED)
"""What says nothing of the request: it goes to another replica at once, unheard by its caller."""


class FleetEngine:
    """Answers over a fleet. A replica at which a request failed is avoided for it while there is another.

    `Unreachable`, `Overloaded`, `RateLimited`, `Unauthorized` and `ModelNotFound` are raised when every
    replica that could be asked has failed so, all else at once. A request waits for room within its deadline,
    in the order of deadlines, then its `priority`; requests with the same `session` share that fairly with
    others, and keep to one replica under `session_affinity`.
    """

    def __init__(self, config: FleetConfig, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.client = FleetClient(config, clock=self._clock)
        # Where each request failed before: its caller may try again under the same id.
        self._failed: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    async def complete(
        self, request: Request, *, timeout_s: float, deadline_s: float | None = None
    ) -> Completion:
        began_s = self._clock.monotonic_s()
        end_s = began_s + (timeout_s if deadline_s is None else deadline_s)
        text = prompt_text(request)
        tried = 0
        while True:
            avoid = self._failed.get(request.id, ())
            demand = self.client.demand(
                text,
                deadline_s=end_s - self._clock.monotonic_s(),
                priority=request.priority,
                tenant=request.session,
                session=request.session,
                avoid=avoid,
            )
            async with self.client.place(demand, chars=len(text)) as lease:
                call_s = min(timeout_s, end_s - self._clock.monotonic_s())
                try:
                    completion = await self._call(lease, request, call_s)
                except EngineError as error:
                    # What a second replica fails at just so lies in the request.
                    lease.failed(error, blame=not (isinstance(error, ServerFault) and avoid))
                    self._remember(request.id, (*avoid, lease.number))
                    tried += 1
                    if (not isinstance(error, ELSEWHERE) and not lease.lost) or self._all_tried(request.id):
                        if isinstance(error, MISPLACED) and tried < len(self.client.replicas()):
                            raise Unreachable(f"{error}; no other replica can be asked now") from None
                        raise
                    continue
                lease.load(completion.load)
                lease.done(completion.usage)
                self._failed.pop(request.id, None)
                return completion

    async def close(self) -> None:
        await self.client.close()

    async def _call(self, lease: Lease, request: Request, timeout_s: float) -> Completion:
        call = asyncio.get_running_loop().create_task(
            lease.engine.complete(request, timeout_s=timeout_s, on_content=lease.progress)
        )

        def give_up() -> None:
            call.cancel()

        lease.on_lost = give_up
        if lease.lost:
            give_up()
        try:
            await asyncio.wait((call,))
        except asyncio.CancelledError:
            # Its caller gave up: that counts, whatever became of the replica.
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            raise
        if call.cancelled():
            raise AttemptTimeout(lease.lost)
        return call.result()

    def _remember(self, id: str, replicas: tuple[int, ...]) -> None:
        self._failed[id] = tuple(dict.fromkeys(replicas))
        self._failed.move_to_end(id)
        if len(self._failed) > MAX_REMEMBERED:
            self._failed.popitem(last=False)

    def _all_tried(self, id: str) -> bool:
        """Whether the request has failed at every replica that there is."""
        fleet = self.client.fleet
        if set(fleet.numbers()) - set(self._failed[id]):
            return False
        # It may come again: to all of them.
        del self._failed[id]
        return True


@dataclass(frozen=True)
class FleetEngineFactory:
    """Opens a `FleetEngine`. Holds where the API key is, never the key; reads it when called."""

    config: FleetConfig

    def __call__(self) -> FleetEngine:
        return FleetEngine(self.config)
