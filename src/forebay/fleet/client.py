"""A fleet of real replicas: places each request at one of them, when it has room.

    client = FleetClient(FleetConfig(FixedReplicas((url, other_url)), model="m"))
    await client.start(wait_s=30)              # optional: raises where no replica can serve
    demand = client.demand(text, deadline_s=60)
    async with client.place(demand) as lease:  # waits for room
        ...                                    # send it to lease.url; lease.progress() as bytes come
        lease.done(usage)                      # or lease.failed(error); without either it was nobody's fault
    await client.close()

`forebay.fleet.engine` makes an `Engine` of it. Everything belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from types import TracebackType

from forebay.clock import Clock, SystemClock
from forebay.engine import Deadline
from forebay.engine.replica import HttpReplica, ServedModel
from forebay.errors import EngineError, Overloaded, SettingError, Unreachable
from forebay.fleet.admission import Admission, Dispatcher, ImmediateDispatcher
from forebay.fleet.cache_events import CacheEventCounts
from forebay.fleet.config import FleetConfig
from forebay.fleet.lease import ReplicaLease
from forebay.fleet.listing import Listing
from forebay.fleet.membership import Connect, Membership
from forebay.fleet.model_queues import ModelQueues
from forebay.fleet.policies import DEFAULT_POLICY, LeastRequests, make_policy
from forebay.fleet.routing_request import BLOCK_CHARS, RoutingRequest, TokenEstimate, text_blocks
from forebay.fleet.served import serves
from forebay.fleet.state import Fleet
from forebay.settings import read_secret

TICK_S = 0.25
"""How often replicas that hang are looked for."""
LATE_S = 1.0
"""A look that comes so late shows that this process was held up itself."""


class FleetClient:
    """Places requests. Nothing is opened before the first `watch`, `start` or `place`.

    `connect` opens a replica in place of HTTP. Raises `SettingError` for a missing API key, and `SetupError`
    where `kv_events` is set without pyzmq.
    """

    def __init__(
        self, config: FleetConfig, *, clock: Clock | None = None, connect: Connect | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._tokens = TokenEstimate()
        self.fleet = Fleet([], block_tokens=round(BLOCK_CHARS / self._tokens.chars_per_token))
        self.api_key = None if config.api_key is None else read_secret(config.api_key)
        make: Callable[[], Dispatcher[PendingPlacement]]
        if config.routing == DEFAULT_POLICY:
            make = partial(Admission, self.fleet)
        else:
            policy = make_policy(config.routing, instead=LeastRequests())
            make = partial(ImmediateDispatcher, self.fleet, policy)
        self._members = Membership(
            config, self.fleet, self.api_key, self._clock, self._soon, connect=connect or self._over_http
        )
        self.served = self._members.served
        """Which replicas serve which models."""
        self._dispatcher = ModelQueues(self.fleet, make, self.served.only)
        self._waker: asyncio.TimerHandle | asyncio.Handle | None = None
        self._wake_s = math.inf
        self._ticker: asyncio.Task[None] | None = None
        self._stream = config.stream
        self._placings: set[PendingPlacement] = set()
        self._sent: set[str] = set()
        # Requests that still waited after the last dispatch: those that came since may find room.
        self._held = 0
        self._closed = False
        self.on_idle: Callable[[], None] = lambda: None
        """Called when no request waits for room any more."""
        self.on_usable: Callable[[int], None] = lambda usable: None
        """Called with `usable` within a quarter of a second after it has changed, and once it is known."""
        self._told_usable: int | None = None
        self._unlisted = 0

    @property
    def waiting(self) -> int:
        """How many requests wait for a replica with room, or for the first one that is up."""
        return len(self._dispatcher) + self._unlisted

    @property
    def full(self) -> bool:
        """Whether no replica has room for more: some requests wait here for it, or at every replica that may
        get them, as these last reported."""
        if self._held:
            return True
        rows = [row for row, member in self._members.rows.items() if self.fleet.available[row]]
        return bool(rows) and bool((self.fleet.reported_waiting[rows] > 0).all())

    @property
    def sent(self) -> Collection[str]:
        """The ids of the requests that have a replica now, of those that were placed with one."""
        return self._sent

    @property
    def in_flight(self) -> int:
        """How many requests are at replicas."""
        return sum(len(member.leases) for member in self._members.rows.values())

    @property
    def usable(self) -> int:
        """How many replicas may get requests, those included that have still to show that they are well."""
        return self._members.usable()

    @property
    def kv_usage(self) -> float:
        """Share of the replicas' KV caches in use, 0 to 1, as they last reported; 0 without a replica."""
        rows = list(self._members.rows)
        return float(self.fleet.reported_kv[rows].mean()) if rows else 0.0

    @property
    def listing(self) -> int:
        """The version of the list of replicas that counts now; 0 for a list that has none."""
        found = self._members.listing
        return found.version if isinstance(found, Listing) else 0

    @property
    def wanted(self) -> int | None:
        """How many replicas there should be, where whoever scales them says it with their list."""
        found = self._members.listing
        return found.wanted if isinstance(found, Listing) else None

    def at_replicas(self) -> dict[str, int]:
        """How many requests are at each replica, by URL, those that leave the list included."""
        counts = dict.fromkeys(self._members.members, 0)
        for member in self._members.rows.values():
            counts[member.url] = counts.get(member.url, 0) + len(member.leases)
        return counts

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """What may be asked for."""
        return self.served.models()

    def replicas(self, model: str | None = None) -> dict[str, str]:
        """Each replica by URL, of those that serve `model`, with why it gets no requests now; empty if it
        may."""
        return {url: member.why for url, member in self._members.members.items() if serves(member, model)}

    @property
    def probed(self) -> bool:
        """Whether the list of replicas was read, and each of them was asked once."""
        return self._members.listed and all(member.asked for member in self._members.members.values())

    @property
    def fault(self) -> str:
        """Why the list of replicas cannot be read now; empty while it can."""
        return self._members.fault

    def cache_events(self) -> dict[str, CacheEventCounts]:
        """What came of the KV-cache events of each replica, by URL; empty without `kv_events`."""
        members = self._members.members.items()
        return {url: member.cache.counts for url, member in members if member.cache is not None}

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
        """What a request with this prompt asks for; `deadline_s` is in seconds from now. All others as
        `RoutingRequest` has them."""
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
    ) -> PendingPlacement:
        """Wait for a replica with room: an async context manager that gives the `ReplicaLease`.

        Entering raises `Overloaded` at the demand's deadline where none had room until then, and
        `Unreachable` where there was none to send to; so it does where `deadline` is over. That one counts
        only while no replica works, until the request is sent. `chars` is the prompt's length; with it, what
        the replica counts teaches how many tokens a text has. `id`: what the request is called in `sent`.
        `source`: whose request it is; failures of one source say little of the replica.
        """
        return PendingPlacement(self, demand, deadline or Deadline(), chars=chars, id=id, source=source)

    def only(self, lease: ReplicaLease) -> bool:
        """Whether no other replica may get what was sent with `lease`."""
        return self._members.only(lease.number)

    async def accepts(self, lease: ReplicaLease) -> bool:
        """Whether the replica of `lease` answers a probe of our own; blocks until that is known."""
        return await self._members.accepts(lease.number)

    def watch(self) -> None:
        """Follow the list of replicas from now on, and look at each; returns at once. Raises `Unreachable`
        where the client is closed."""
        if self._closed:
            raise Unreachable("the fleet's client is closed")
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().create_task(self._tick())
            self._members.start()

    async def start(self, wait_s: float = 30.0) -> None:
        """Return once a replica can take requests.

        Raises `SettingError` where all have answered and none serves the model, or the list cannot be read;
        `Unreachable` where there is none after `wait_s`.
        """
        self.watch()
        members = self._members
        end_s = self._clock.monotonic_s() + wait_s
        while not members.usable():
            told = list(members.members.values())
            if told and all(member.asked and member.models and member.fault for member in told):
                raise SettingError(f"no replica serves the model: {members.why_none()}")
            if not told and members.fault:
                raise SettingError(members.fault)
            if not await self._look(end_s):
                raise Unreachable(f"no replica can be used after {wait_s:g} s: {members.why_none()}")

    async def until_listed(self, wait_s: float) -> bool:
        """Wait until a replica has reported its models; whether one has after `wait_s`."""
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
        """Why no replica can be used, in one line."""
        return self._members.why_none()

    async def _look(self, end_s: float) -> bool:
        """Wait for the next look at a replica; False if it is `end_s` already."""
        left_s = end_s - self._clock.monotonic_s()
        if left_s <= 0:
            return False
        self._members.looked.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._members.looked.wait(), left_s if left_s < math.inf else None)
        return True

    async def close(self) -> None:
        """Stop watching and close all connections. What waits is given up; leases in flight are cut."""
        self._closed = True
        for placing in list(self._placings):
            placing.refuse(Unreachable("the fleet's client was closed", sent=False))
        if self._waker is not None:
            self._waker.cancel()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self._members.close()

    async def _tick(self) -> None:
        due_s = self._clock.monotonic_s() + TICK_S
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self._clock.monotonic_s()
            if now_s > due_s + LATE_S:
                self._members.resumed()
            due_s = now_s + TICK_S
            self.fleet.forget_stale_reports(now_s)
            self._members.find_stalled()
            self._members.forget_evicted()
            self._tell_usable()
            counts = self._members.time_counts()
            for placing in list(self._placings):
                placing.waits(now_s, counts=counts)
            if len(self._dispatcher):
                self._soon()

    def _tell_usable(self) -> None:
        usable = self.usable
        # None may be usable because none was asked yet.
        if usable != self._told_usable and (usable or self.probed):
            self._told_usable = usable
            self.on_usable(usable)

    def _add(self, placing: PendingPlacement) -> None:
        self.watch()
        now_s = self._clock.monotonic_s()
        self._placings.add(placing)
        placing.waits(now_s, counts=self._members.time_counts())
        self._dispatcher.add(placing, placing.demand, now_s)
        self._soon()

    def _remove(self, placing: PendingPlacement) -> None:
        self._placings.discard(placing)
        self._dispatcher.remove(placing)
        self._soon()

    def _soon(self) -> None:
        """Dispatch in the loop's next round, once for all that happens in this one."""
        if self._wake_s == -math.inf or self._closed:
            return
        if self._waker is not None:
            self._waker.cancel()
        self._wake_s = -math.inf
        self._waker = asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._waker, self._wake_s = None, math.inf
        now_s = self._clock.monotonic_s()
        for placing, ticket in self._dispatcher.ready(now_s):
            self._placings.discard(placing)
            member = self._members.rows[ticket.replica]
            placing.grant(
                ReplicaLease(
                    member,
                    ticket,
                    self.fleet,
                    self._clock,
                    self._changed,
                    blocks=placing.demand.blocks,
                    source=placing.source,
                )
            )
        for placing in self._dispatcher.expired():
            placing.expire()
        if self._wake_s == math.inf and self._dispatcher.wake_s < math.inf:
            self._wake_s = self._dispatcher.wake_s
            delay_s = max(0.0, self._wake_s - now_s)
            self._waker = asyncio.get_running_loop().call_later(delay_s, self._dispatch)
        self._held = len(self._dispatcher)
        if not self._held:
            self.on_idle()

    def _changed(self, lease: ReplicaLease) -> None:
        member = self._members.rows.get(lease.number)
        if member is not None:
            self._members.sync(member)
        if len(self._dispatcher):
            self._soon()

    def _over_http(self, url: str) -> HttpReplica:
        return HttpReplica(url, api_key=self.api_key, stream=self._stream, clock=self._clock)

    def _learn(self, chars: int, lease: ReplicaLease) -> None:
        if lease.usage is not None and chars:
            self._tokens.learn(chars, lease.usage.prompt_tokens)
            self.fleet.block_tokens = BLOCK_CHARS / self._tokens.chars_per_token

    def _refusal(self, waited_s: float, model: str | None) -> EngineError:
        if self._members.works(model):
            replicas = f"{self.usable} replica{'s' * (self.usable != 1)}"
            return Overloaded(
                f"no replica had room for the request within {waited_s:.1f} s: {replicas} with "
                f"{self.in_flight} requests in flight, {len(self._placings)} waiting",
                sent=False,
            )
        why = self._members.why_none()
        return Unreachable(f"there is no replica to send the request to: {why}", sent=False)


class PendingPlacement:
    """A request that waits for a replica, and then has one."""

    def __init__(
        self,
        client: FleetClient,
        demand: RoutingRequest,
        deadline: Deadline,
        *,
        chars: int,
        id: str,
        source: str | None,
    ) -> None:
        self.demand = demand
        self.source = source
        self._id = id
        self.deadline = deadline
        self._client = client
        self._chars = chars
        self._lease: ReplicaLease | None = None
        self._granted: asyncio.Future[ReplicaLease] | None = None
        self._began_s = 0.0

    async def __aenter__(self) -> ReplicaLease:
        loop = asyncio.get_running_loop()
        client = self._client
        self._granted = loop.create_future()
        self._began_s = client._clock.monotonic_s()
        client._add(self)
        left_s = self.demand.deadline_s - self._began_s
        timer = loop.call_later(max(0.0, left_s), self.expire) if left_s < math.inf else None
        try:
            self._lease = await self._granted
            if self._id:
                client._sent.add(self._id)
            return self._lease
        except BaseException:
            if self._granted.done() and not self._granted.cancelled() and not self._granted.exception():
                self._granted.result().release()
            else:
                client._remove(self)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._lease
        assert lease is not None
        self._client._sent.discard(self._id)
        if isinstance(error, EngineError):
            lease.failed(error)
        lease.release()
        self._client._learn(self._chars, lease)

    def grant(self, lease: ReplicaLease) -> None:
        """The dispatcher found a replica."""
        assert self._granted is not None
        if self._granted.done():
            lease.release()
        else:
            self.deadline.begin(lease.sent_s)
            self._granted.set_result(lease)

    def waits(self, now_s: float, *, counts: bool) -> None:
        """It has no replica yet; whether the time until then counts against its deadline."""
        self.deadline.wait(now_s, counts=counts)
        if self.deadline.left_s(now_s) <= 0:
            self.expire()

    def expire(self) -> None:
        """The deadline has passed."""
        waited_s = self._client._clock.monotonic_s() - self._began_s
        self.refuse(self._client._refusal(waited_s, self.demand.model))

    def refuse(self, error: EngineError) -> None:
        """It gets no replica."""
        if self._granted is not None and not self._granted.done():
            self._granted.set_exception(error)
