"""An `Engine` over a fleet: a call goes to the replica that suits it, and to another where that one fails.
What may be spent on repeats is a share of what succeeds.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from forebay.clock import Clock, SystemClock
from forebay.engine import Deadline
from forebay.errors import AttemptTimeout, EngineError, Overloaded, RateLimited, ServerFault, Unreachable
from forebay.fleet.client import FleetClient
from forebay.fleet.config import FleetConfig
from forebay.fleet.lease import MISPLACED, ReplicaLease
from forebay.fleet.membership import Connect
from forebay.fleet.routing_request import prompt_text
from forebay.records import Completion, Request

SHARE = 0.2
"""Calls that may be repeated for each one that succeeds."""
FIRST, MOST = 32.0, 128.0
"""Repeats that are allowed before anything has succeeded, and that may be saved up."""
ALWAYS = 3
"""Repeats at a time that are allowed though nothing is left: an outage has to end some time."""


class RetryBudget:
    """Bounds calls that repeat a failed one, over all requests of a fleet. Belongs to one event loop.

    Each is paid for by what has succeeded. One that cannot be waits, in order, until no request waits for its
    first call (`idle`): repeats must not keep others out, but where there are no others they harm nobody.
    """

    def __init__(self, idle: Callable[[], bool]) -> None:
        self._idle = idle
        self._left = FIRST
        self._free = ALWAYS
        self._waiting: deque[asyncio.Future[bool]] = deque()

    def succeeded(self) -> None:
        """A call succeeded."""
        self._left = min(self._left + SHARE, MOST)
        self.wake()

    @asynccontextmanager
    async def repeat(self, left_s: float) -> AsyncIterator[bool]:
        """While a call is repeated; waits for its turn. Gives False where it did not come within `left_s`."""
        paid = await self._turn(left_s)
        try:
            yield paid is not None
        finally:
            if paid is False:
                self._free += 1
                self.wake()

    async def _turn(self, left_s: float) -> bool | None:
        """Whether it was paid for, or is one of those that always may be; None where its time is over."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self.wake()
        if turn.done():
            return turn.result()
        try:
            await asyncio.wait((turn,), timeout=None if left_s == float("inf") else max(0.0, left_s))
            return turn.result() if turn.done() else None
        except BaseException:
            if turn.done() and not turn.result():
                self._free += 1
                self.wake()
            raise
        finally:
            if not turn.done():
                turn.cancel()

    def wake(self) -> None:
        """Something has changed: let those go on whose turn it is."""
        while self._waiting:
            turn = self._waiting[0]
            if turn.done():
                # Its time was over.
                self._waiting.popleft()
                continue
            if self._left >= 1:
                self._left -= 1
                paid = True
            elif self._free:
                self._free -= 1
                paid = False
            elif self._idle():
                paid = True
            else:
                return
            self._waiting.popleft()
            turn.set_result(paid)
            if self._left < 1 and not self._free:
                # One at a time, so that it is seen whether there is room for another.
                return


MAX_REMEMBERED = 10_000
ROUNDING_S = 1e-6
ELSEWHERE = (Unreachable, Overloaded, RateLimited, *MISPLACED)
"""What says nothing of the request: it goes to another replica at once, unheard by its caller."""


PromptElsewhere = Callable[[], Awaitable[Request]]
"""Has a prompt prefilled at another replica; gives the request as whoever decodes it is to get it."""


class Unbegun(Deadline):
    """The time of a record that has a place and no call yet: it does not begin with the place."""

    __slots__ = ("_of",)

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._of = deadline

    def begin(self, now_s: float) -> None:
        self._of.wait(now_s, counts=False)

    def wait(self, now_s: float, *, counts: bool) -> None:
        self._of.wait(now_s, counts=counts)

    def left_s(self, now_s: float) -> float:
        return self._of.left_s(now_s)


@dataclass(frozen=True, slots=True)
class Failed:
    """What became of a request until now: the replicas at which it failed, how the last time, and whether
    that one had left it lying."""

    replicas: tuple[int, ...]
    error: EngineError
    lost: bool


class FleetEngine:
    """Answers over a fleet, which may be of one replica. Where a request failed it is avoided for it while
    there is another.

    `Unreachable`, `Overloaded`, `RateLimited`, `Unauthorized` and `ModelNotFound` are raised when every
    replica that could be asked has failed so, all else at once. A request waits for room, in the order in
    which requests are due (`due_s`, or else their deadlines), then its `priority`; its own deadline does not
    count meanwhile, unless no replica works. Requests with the same `session` share that fairly with others,
    and keep to one replica under `session_affinity`. Calls after a failed one are paid from a `RetryBudget`
    that all share.

    `connect` opens a replica in place of HTTP.
    """

    def __init__(
        self, config: FleetConfig, *, clock: Clock | None = None, connect: Connect | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self.client = FleetClient(config, clock=self._clock, connect=connect)
        self._any_model = config.model is None
        self._retries = RetryBudget(lambda: not self.client.waiting)
        self.client.on_idle = self._retries.wake
        # Its caller may try a request again under the same id.
        self._failed: OrderedDict[str, Failed] = OrderedDict()

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        deadline = deadline or Deadline()
        text = prompt_text(request)
        tried = 0
        while True:
            before = self._failed.get(request.id)
            if before is None:
                found = await self._once(request, text, (), timeout_s, deadline)
            else:
                async with self._retries.repeat(deadline.left_s(self._clock.monotonic_s())) as turn:
                    if not turn:
                        raise type(before.error)(str(before.error), sent=False)
                    try:
                        found = await self._once(request, text, before.replicas, timeout_s, deadline)
                    except Unreachable:
                        # What it failed with says more than that there is no place for it now.
                        raise type(before.error)(str(before.error), sent=False) from None
            if isinstance(found, Completion):
                self._failed.pop(request.id, None)
                self._retries.succeeded()
                return found
            tried += 1
            error = found.error
            if isinstance(error, ELSEWHERE) or found.lost:
                if not self._all_tried(found.replicas, request.model):
                    self._remember(request.id, found)
                    continue
                # It may come again: to all of them.
                found = Failed((), error, found.lost)
            self._remember(request.id, found)
            if isinstance(error, MISPLACED) and tried < len(self.client.replicas()):
                raise Unreachable(f"{error}; no other replica can be asked now")
            raise error

    async def complete_first(
        self, request: Request, *, timeout_s: float, deadline: Deadline, prompt: PromptElsewhere
    ) -> Completion:
        """The first call of a request whose prompt `prompt` has prefilled elsewhere, once there is a place
        for it here. What fails is raised, and held against no replica where the other one may have caused it.
        """
        text = prompt_text(request)
        found = await self._once(request, text, (), timeout_s, deadline, prompt=prompt)
        if isinstance(found, Completion):
            self._retries.succeeded()
            return found
        self._remember(request.id, found)
        raise found.error

    def has_failed(self, id: str) -> bool:
        """Whether the last call of this request failed."""
        return id in self._failed

    async def _once(
        self,
        request: Request,
        text: str,
        avoid: tuple[int, ...],
        timeout_s: float,
        deadline: Deadline,
        *,
        prompt: PromptElsewhere | None = None,
    ) -> Completion | Failed:
        """One call, when a replica has room. Raises where none has within the deadline."""
        begun = deadline.begun_s is not None
        demand = self.client.demand(
            text,
            deadline_s=deadline.left_s(self._clock.monotonic_s()) if begun else math.inf,
            due_s=math.inf if request.due_s is None else request.due_s,
            keeps_place=True,
            priority=request.priority,
            # Fairness among keys is kept within a class: an alarm does not wait for its key's archive.
            tenant=request.session and "\0".join((request.service, request.session)),
            session=request.session,
            avoid=avoid,
            transferred=prompt is not None,
            model=request.model if self._any_model else None,
        )
        placing = deadline if prompt is None else Unbegun(deadline)
        async with self.client.place(
            demand, deadline=placing, chars=len(text), id=request.id, source=request.id
        ) as lease:
            lease.timeout_s = timeout_s
            if prompt is not None:
                lease.awaits_prompt()
                try:
                    request = await prompt()
                except EngineError:
                    # Another replica's.
                    lease.release()
                    raise
                lease.prompt_came()
            try:
                completion = await self._call(lease, request, deadline)
            except EngineError as error:
                if deadline.left_s(self._clock.monotonic_s()) <= 0:
                    lease.late()
                only = self.client.only(lease)
                # One that fails again there says as much of itself.
                again = only and request.id in self._failed
                blame = not again and self._blames(lease, error, avoid, deadline)
                # It may have been refused the KV cache of its prompt.
                blame = blame and not (prompt is not None and isinstance(error, ServerFault))
                # A time that has passed says how slow the replica is, wherever else there is to go.
                lease.failed(error, blame=blame, alone=only and not isinstance(error, AttemptTimeout))
                replicas = tuple(dict.fromkeys((*avoid, lease.number)))
                return Failed(replicas, error, bool(lease.lost))
            lease.load(completion.load)
            lease.done(completion.usage)
            return completion

    def _blames(
        self, lease: ReplicaLease, error: EngineError, avoid: tuple[int, ...], deadline: Deadline
    ) -> bool:
        """Whether a failure is held against the replica."""
        if isinstance(error, ServerFault):
            # What a second one fails at just so lies in the request.
            return not avoid
        if isinstance(error, AttemptTimeout):
            return deadline.left_s(self._clock.monotonic_s()) > ROUNDING_S
        # What no other can take over it is sent on, to be told so each time.
        return not isinstance(error, MISPLACED) or not self.client.only(lease)

    async def close(self) -> None:
        await self.client.close()

    async def _call(self, lease: ReplicaLease, request: Request, deadline: Deadline) -> Completion:
        # The lease knows when no progress is made.
        call = asyncio.get_running_loop().create_task(
            lease.engine.complete(request, timeout_s=math.inf, deadline=deadline, on_content=lease.progress)
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

    def _remember(self, id: str, failed: Failed) -> None:
        self._failed[id] = failed
        self._failed.move_to_end(id)
        if len(self._failed) > MAX_REMEMBERED:
            self._failed.popitem(last=False)

    def _all_tried(self, replicas: tuple[int, ...], model: str) -> bool:
        """Whether the request has failed at every replica that may get it."""
        left = set(self.client.fleet.numbers()) - set(replicas)
        return not (left & set(self.client.served.rows(model)) if self._any_model else left)


@dataclass(frozen=True)
class FleetEngineFactory:
    """Opens a `FleetEngine`. Holds where the API key is, never the key; reads it when called."""

    config: FleetConfig

    def __call__(self) -> FleetEngine:
        return FleetEngine(self.config)
