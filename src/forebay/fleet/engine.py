"""An `Engine` over a fleet: a call that fails at one replica goes to another, within a budget of retries."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace

from forebay.clock import Clock, SystemClock
from forebay.engine import Deadline
from forebay.engine.call_trace import CALL_TRACE
from forebay.errors import (
    AttemptTimeout,
    EngineError,
    Overloaded,
    PromptTooLong,
    ProtocolViolation,
    RateLimited,
    ServerFault,
    Unreachable,
)
from forebay.fleet.client import FleetClient
from forebay.fleet.config import FleetConfig
from forebay.fleet.lease import MISPLACED, ReplicaLease
from forebay.fleet.membership import Connect
from forebay.fleet.routing_request import prompt_text
from forebay.records import Completion, Request

SHARE = 0.2
FIRST_RETRIES, MAX_RETRIES = 32.0, 128.0
ALWAYS = 3
"""Retries at a time that need no budget, so that an outage can end."""


class RetryBudget:
    """Limits retries over all requests of a fleet; belongs to one event loop.

    Successes pay for retries. A retry without budget waits in order until no request waits for its first call
    (`idle`).
    """

    def __init__(self, idle: Callable[[], bool]) -> None:
        self._idle = idle
        self._left = FIRST_RETRIES
        self._free = ALWAYS
        self._waiting: deque[asyncio.Future[bool]] = deque()

    def succeeded(self) -> None:
        self._left = min(self._left + SHARE, MAX_RETRIES)
        self.wake()

    @asynccontextmanager
    async def repeat(self, left_s: float) -> AsyncIterator[bool]:
        paid = await self._turn(left_s)
        try:
            yield paid is not None
        finally:
            if paid is False:
                self._free += 1
                self.wake()

    async def _turn(self, left_s: float) -> bool | None:
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
        while self._waiting:
            turn = self._waiting[0]
            if turn.done():
                # It timed out.
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
                # One at a time, to see whether there is room for another.
                return


MAX_REMEMBERED = 10_000
ROUNDING_S = 1e-6
ELSEWHERE = (Unreachable, Overloaded, RateLimited, *MISPLACED)
"""Errors that are not the request's fault: it goes to another replica without reporting them."""


PromptElsewhere = Callable[[], Awaitable[Request]]
"""Prefills a prompt at another replica; returns the request for the decoding replica."""


class PlacementDeadline(Deadline):
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
class CallFailed:
    """A call of a request failed at `replica`; the next one avoids `avoid`.

    `too_long`: for that replica only, so the next call does not count as a retry.
    """

    replica: int
    avoid: tuple[int, ...]
    error: EngineError
    lost: bool
    too_long: bool = False


class FleetEngine:
    """Answers over a fleet of one or more replicas; a request avoids replicas at which it failed.

    `Unreachable`, `Overloaded`, `RateLimited`, `Unauthorized` and `ModelNotFound` are raised once every
    replica has failed this way, `PromptTooLong` once no replica has a longer context, other errors at once.
    If all serve other models by now, or refuse a probe's key, too, `Unreachable` is raised instead, and also
    for a `ProtocolViolation` by a replica that does not answer a probe either. Requests wait for room in
    order of `due_s` or else their deadlines, then `priority`; waiting counts only while no replica works.
    """

    def __init__(
        self, config: FleetConfig, *, clock: Clock | None = None, connect: Connect | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self.client = FleetClient(config, clock=self._clock, connect=connect)
        self._any_model = config.model is None
        self._retries = RetryBudget(lambda: not self.client.waiting)
        self.client.on_idle = self._retries.wake
        # The caller may try a request again under the same id.
        self._failed: OrderedDict[str, CallFailed] = OrderedDict()

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
                left_s = deadline.left_s(self._clock.monotonic_s())
                async with nullcontext(True) if before.too_long else self._retries.repeat(left_s) as turn:
                    if not turn:
                        raise type(before.error)(str(before.error), sent=False)
                    try:
                        found = await self._once(request, text, before.avoid, timeout_s, deadline)
                    except Unreachable:
                        # The last failure is more informative than a lack of room.
                        raise type(before.error)(str(before.error), sent=False) from None
            if isinstance(found, Completion):
                self._failed.pop(request.id, None)
                self._retries.succeeded()
                return found
            tried += 1
            error = found.error
            if isinstance(error, ELSEWHERE) or found.lost:
                if not self._all_tried(found.avoid, request.model):
                    self._remember(request.id, found)
                    continue
                if isinstance(error, MISPLACED) and not await self._one_fits(found.avoid, deadline):
                    error = Unreachable(str(error))
                # The request may be tried again, at all replicas.
                found = replace(found, avoid=(), error=error)
            elif isinstance(error, PromptTooLong) and (longer := self._longer(found, request.model)):
                found = longer
                if not self._all_tried(found.avoid, request.model):
                    self._remember(request.id, found)
                    continue
                error = found.error
            elif isinstance(error, ProtocolViolation) and not await self._one_fits(
                (found.replica,), deadline
            ):
                error = Unreachable(str(error))
                found = replace(found, error=error)
            self._remember(request.id, found)
            if isinstance(error, MISPLACED) and tried < len(self.client.replicas()):
                raise Unreachable(f"{error}; no other replica can be asked now")
            raise error

    def _longer(self, found: CallFailed, model: str) -> CallFailed | None:
        served = self.client.served
        longer = served.with_longer_context(found.replica, model)
        if not longer:
            return None
        # It may be one at which the request failed for another reason.
        avoid = tuple({*served.rows(model)} - longer)
        error = Unreachable(f"{found.error}; a replica with a longer context is asked once it is there")
        return replace(found, avoid=avoid, error=error, too_long=True)

    async def _one_fits(self, replicas: tuple[int, ...], deadline: Deadline) -> bool:
        left_s = deadline.left_s(self._clock.monotonic_s())
        return any(await asyncio.gather(*(self.client.fits(number, left_s) for number in replicas)))

    async def complete_first(
        self, request: Request, *, timeout_s: float, deadline: Deadline, prompt: PromptElsewhere
    ) -> Completion:
        """Make the first call of a request whose prompt `prompt` prefills elsewhere, once there is a place
        here.

        Errors are not held against a replica if the other one may have caused them.
        """
        text = prompt_text(request)
        found = await self._once(request, text, (), timeout_s, deadline, prompt=prompt)
        if isinstance(found, Completion):
            self._retries.succeeded()
            return found
        longer = self._longer(found, request.model) if isinstance(found.error, PromptTooLong) else None
        self._remember(request.id, longer or found)
        raise (longer or found).error

    def has_failed(self, id: str) -> bool:
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
    ) -> Completion | CallFailed:
        begun = deadline.begun_s is not None
        demand = self.client.demand(
            text,
            deadline_s=deadline.left_s(self._clock.monotonic_s()) if begun else math.inf,
            due_s=math.inf if request.due_s is None else request.due_s,
            keeps_place=True,
            priority=request.priority,
            # Keys are treated fairly within a priority: an alarm does not wait for its key's archive.
            tenant=request.session and "\0".join((request.service, request.session)),
            session=request.session,
            avoid=avoid,
            transferred=prompt is not None,
            model=request.model if self._any_model else None,
        )
        placing = deadline if prompt is None else PlacementDeadline(deadline)
        trace = CALL_TRACE.get()
        route = None if trace is None else trace.route(self._clock.monotonic_s())
        async with self.client.place(
            demand, deadline=placing, chars=len(text), id=request.id, source=request.id
        ) as lease:
            lease.timeout_s = timeout_s
            if route is not None:
                route.until_s, route.why = lease.sent_s, self.client.why(lease, demand)
            if prompt is not None:
                lease.await_prompt()
                try:
                    request = await prompt()
                except EngineError:
                    # The prompt belongs to another replica.
                    lease.release()
                    raise
                lease.prompt_arrived()
            try:
                completion = await self._call(lease, request, deadline)
            except EngineError as error:
                if trace is not None:
                    trace.failed(error.cause, self._clock.monotonic_s())
                if deadline.left_s(self._clock.monotonic_s()) <= 0:
                    lease.late()
                only = self.client.only(lease)
                # A replica that fails again is at fault itself.
                again = only and request.id in self._failed
                blame = not again and self._blames(lease, error, avoid, deadline)
                # It may have been refused the KV cache.
                blame = blame and not (prompt is not None and isinstance(error, ServerFault))
                # A timeout shows that the replica is slow, even if there are others.
                lease.failed(error, blame=blame, alone=only and not isinstance(error, AttemptTimeout))
                avoid = tuple(dict.fromkeys((*avoid, lease.number)))
                return CallFailed(lease.number, avoid, error, bool(lease.lost))
            lease.load(completion.load)
            lease.done(completion.usage)
            return completion

    def _blames(
        self, lease: ReplicaLease, error: EngineError, avoid: tuple[int, ...], deadline: Deadline
    ) -> bool:
        if isinstance(error, ServerFault):
            # If a second replica fails in the same way, the request is at fault.
            return not avoid
        if isinstance(error, AttemptTimeout):
            return deadline.left_s(self._clock.monotonic_s()) > ROUNDING_S
        # Without another replica, `fits` decides.
        return not isinstance(error, MISPLACED) or not self.client.only(lease)

    async def close(self) -> None:
        await self.client.close()

    async def _call(self, lease: ReplicaLease, request: Request, deadline: Deadline) -> Completion:
        # The lease detects a lack of progress.
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
            # A caller that gave up counts as a failure, whatever the replica did.
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            raise
        if call.cancelled():
            raise AttemptTimeout(lease.lost)
        return call.result()

    def _remember(self, id: str, failed: CallFailed) -> None:
        self._failed[id] = failed
        self._failed.move_to_end(id)
        if len(self._failed) > MAX_REMEMBERED:
            self._failed.popitem(last=False)

    def _all_tried(self, replicas: tuple[int, ...], model: str) -> bool:
        left = set(self.client.fleet.numbers()) - set(replicas)
        return not (left & set(self.client.served.rows(model)) if self._any_model else left)
