"""A fleet of real replicas: sends each request to one of them, once it has room.

    client = FleetClient(FleetConfig(FixedReplicas((url, other_url)), model="m"))
    await client.start(wait_s=30)              # optional: raises if no replica can serve
    demand = client.demand(text, deadline_s=60)
    async with client.place(demand) as lease:  # waits for room
        ...                                    # send it to lease.url; lease.progress() as bytes come
        lease.done(usage)                      # or lease.failed(error); without either, no fault is counted
    await client.close()

`forebay.fleet.engine` makes an `Engine` of it. Everything belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial

from forebay.clock import Clock, SystemClock
from forebay.engine import Deadline
from forebay.engine.call_trace import RouteReasons
from forebay.engine.replica import HttpReplica, ServedModel
from forebay.errors import SettingError, Unreachable
from forebay.fleet.admission import Admission, Dispatcher, ImmediateDispatcher
from forebay.fleet.config import DEFAULT_POLICY, FleetConfig
from forebay.fleet.discovery import ScaledReplicaSet
from forebay.fleet.lease import ReplicaLease
from forebay.fleet.membership import Connect, Membership
from forebay.fleet.placement import Placements, WaitingRequest
from forebay.fleet.policies import LeastRequests, make_policy
from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.routing_request import BLOCK_CHARS, RoutingRequest, TokenEstimate, text_blocks
from forebay.fleet.served import serves
from forebay.settings import read_secret

TICK_S = 0.25
LATE_S = 1.0
"""A tick that is late by this much shows that this process was paused."""


class FleetClient:
    """Places requests. Connects to nothing before the first `watch`, `start` or `place`.

    `connect` opens a replica in place of HTTP. Raises `SettingError` for a missing API key.
    """

    def __init__(
        self, config: FleetConfig, *, clock: Clock | None = None, connect: Connect | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._tokens = TokenEstimate()
        self.fleet = ReplicaTable([], block_tokens=round(BLOCK_CHARS / self._tokens.chars_per_token))
        self.api_key = None if config.api_key is None else read_secret(config.api_key)
        make: Callable[[], Dispatcher[WaitingRequest]]
        if config.routing == DEFAULT_POLICY:
            make = partial(Admission, self.fleet)
        else:
            policy = make_policy(config.routing, instead=LeastRequests())
            make = partial(ImmediateDispatcher, self.fleet, policy)
        self._membership = Membership(
            config,
            self.fleet,
            self.api_key,
            self._clock,
            self._dispatch_soon,
            connect=connect or self._over_http,
        )
        self.served = self._membership.served
        self._placements = Placements(
            self.fleet,
            self._membership,
            make,
            self._tokens,
            self._clock,
            watch=self.watch,
            on_idle=self._idle,
        )
        self._ticker: asyncio.Task[None] | None = None
        self._routing = config.routing
        self._stream = config.stream
        self._closed = False
        self.on_idle: Callable[[], None] = lambda: None
        self.on_usable: Callable[[int], None] = lambda usable: None
        """Called with `usable` within a quarter of a second of a change, and once it is known."""
        self._reported_usable: int | None = None
        self._unlisted = 0

    @property
    def waiting(self) -> int:
        return len(self._placements) + self._unlisted

    @property
    def full(self) -> bool:
        """Whether no replica has room: requests wait here, or at every replica by its last report."""
        if self._placements.held:
            return True
        rows = [row for row, replica in self._membership.rows.items() if self.fleet.available[row]]
        return bool(rows) and bool((self.fleet.reported_waiting[rows] > 0).all())

    @property
    def sent(self) -> Collection[str]:
        return self._placements.sent

    @property
    def in_flight(self) -> int:
        return self._membership.in_flight()

    @property
    def usable(self) -> int:
        return self._membership.usable()

    @property
    def kv_usage(self) -> float:
        """Mean share of KV cache in use, 0 to 1, by the last reports."""
        rows = list(self._membership.rows)
        return float(self.fleet.reported_kv[rows].mean()) if rows else 0.0

    @property
    def listing(self) -> int:
        found = self._membership.listing
        return found.version if isinstance(found, ScaledReplicaSet) else 0

    @property
    def wanted(self) -> int | None:
        found = self._membership.listing
        return found.wanted if isinstance(found, ScaledReplicaSet) else None

    def at_replicas(self) -> dict[str, int]:
        counts = dict.fromkeys(self._membership.replicas, 0)
        for replica in self._membership.rows.values():
            counts[replica.url] = counts.get(replica.url, 0) + len(replica.leases)
        return counts

    @property
    def models(self) -> tuple[ServedModel, ...]:
        return self.served.models()

    def replicas(self, model: str | None = None) -> dict[str, str]:
        return {
            url: replica.why for url, replica in self._membership.replicas.items() if serves(replica, model)
        }

    @property
    def probed(self) -> bool:
        return self._membership.listed and all(
            replica.checked for replica in self._membership.replicas.values()
        )

    @property
    def fault(self) -> str:
        return self._membership.fault

    def demand(
        self,
        text: str,
        *,
        deadline_s: float = math.inf,
        due_s: float = math.inf,
        keeps_place: bool = False,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        avoid: tuple[int, ...] = (),
        transferred: bool = False,
        model: str | None = None,
    ) -> RoutingRequest:
        """Describe a request with this prompt. `deadline_s` counts from now; the rest is as in
        `RoutingRequest`.
        """
        now_s = self._clock.monotonic_s()
        return RoutingRequest(
            prompt_tokens=self._tokens.tokens(len(text)),
            blocks=() if transferred else text_blocks(text),
            session=session,
            due_s=due_s,
            keeps_place=keeps_place,
            deadline_s=now_s + deadline_s,
            priority=priority,
            tenant=tenant,
            avoid=avoid,
            transferred=transferred,
            model=model,
        )

    def place(
        self,
        demand: RoutingRequest,
        *,
        deadline: Deadline | None = None,
        chars: int = 0,
        id: str = "",
        source: str | None = None,
    ) -> AbstractAsyncContextManager[ReplicaLease]:
        """Wait for a replica with room.

        Entering raises `Overloaded` if none had room until the demand's deadline, and `Unreachable` without
        any replica or after `deadline`, which counts only while no replica works, until the request is sent.
        `chars` is the prompt's length, from which tokens per character are learned. `id` is the name in
        `sent`. `source`: who sent it; failures of one source alone are weak evidence against a replica.
        """
        return self._placements.place(demand, deadline or Deadline(), chars=chars, id=id, source=source)

    def why(self, lease: ReplicaLease, demand: RoutingRequest) -> RouteReasons:
        return lease.why(self._routing, len(self.fleet.numbers()), len(demand.avoid))

    def only(self, lease: ReplicaLease) -> bool:
        return self._membership.only(lease.number)

    async def accepts(self, lease: ReplicaLease) -> bool:
        return await self._membership.accepts(lease.number)

    async def fits(self, number: int, within_s: float) -> bool:
        """Whether a replica still serves its model and accepts the key. If not, it gets no requests until it
        does.
        """
        return await self._membership.fits(number, within_s)

    def watch(self) -> None:
        """Follow the list and check each replica from now on. Raises `Unreachable` if closed."""
        if self._closed:
            raise Unreachable("the fleet's client is closed")
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().create_task(self._tick())
            self._membership.start()

    async def start(self, wait_s: float = 30.0) -> None:
        """Return once a replica can take requests.

        Raises `SettingError` if all have answered and none serves the model, or if the list cannot be read;
        `Unreachable` if there is no replica after `wait_s`.
        """
        self.watch()
        membership = self._membership
        end_s = self._clock.monotonic_s() + wait_s
        while not membership.usable():
            known = list(membership.replicas.values())
            if known and all(replica.checked and replica.models and replica.fault for replica in known):
                raise SettingError(f"no replica serves the model: {membership.why_none()}")
            if not known and membership.fault:
                raise SettingError(membership.fault)
            if not await self._look(end_s):
                raise Unreachable(f"no replica can be used after {wait_s:g} s: {membership.why_none()}")

    async def until_listed(self, wait_s: float) -> bool:
        """Wait until a replica has reported its models; returns False after `wait_s`."""
        self.watch()
        end_s = self._clock.monotonic_s() + wait_s
        self._unlisted += 1
        try:
            while not self.models:
                if not await self._look(end_s):
                    return False
            return True
        finally:
            self._unlisted -= 1

    @property
    def why_none(self) -> str:
        return self._membership.why_none()

    async def _look(self, end_s: float) -> bool:
        left_s = end_s - self._clock.monotonic_s()
        if left_s <= 0:
            return False
        self._membership.check_ended.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._membership.check_ended.wait(), left_s if left_s < math.inf else None)
        return True

    async def close(self) -> None:
        self._closed = True
        self._placements.close()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self._membership.close()

    async def _tick(self) -> None:
        due_s = self._clock.monotonic_s() + TICK_S
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self._clock.monotonic_s()
            if now_s > due_s + LATE_S:
                self._membership.stalls.resumed()
            due_s = now_s + TICK_S
            self.fleet.forget_stale_reports(now_s)
            self._membership.stalls.find()
            self._membership.forget_evicted()
            self._report_usable()
            self._placements.tick(now_s)

    def _report_usable(self) -> None:
        usable = self.usable
        # Zero may only mean that none was asked yet.
        if usable != self._reported_usable and (usable or self.probed):
            self._reported_usable = usable
            self.on_usable(usable)

    def _dispatch_soon(self) -> None:
        self._placements.dispatch_soon()

    def _idle(self) -> None:
        self.on_idle()

    def _over_http(self, url: str) -> HttpReplica:
        return HttpReplica(url, api_key=self.api_key, stream=self._stream, clock=self._clock)
