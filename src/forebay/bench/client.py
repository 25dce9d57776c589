"""Sends a load to a target and records the answers."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone

from forebay.bench.load.schedules import RequestLoad
from forebay.bench.records import Chunk, LoadRequest, LoadRun, RequestRecord
from forebay.bench.targets.base import Piece, Target, trial_requests
from forebay.errors import AttemptTimeout, EngineError, SetupError
from forebay.processes import raise_file_limit

TIMEOUT_S = 600.0
START_S = 0.05
PROGRESS_S = 0.5
AT_ONCE_S = 0.005
"""Requests due within this time need a connection each."""
OTHER_FILES = 64
UNKNOWN = -1
INTERRUPTED = "interrupted: the run was ended before the answer was complete"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    requests: int
    sent: int
    ended: int
    failed: int
    passed_s: float


OnProgress = Callable[[LoadProgress], None]


def measure(
    target: Target, load: RequestLoad, *, timeout_s: float = TIMEOUT_S, on_progress: OnProgress | None = None
) -> LoadRun:
    """Open `target`, send it `load` and close it; blocks until the last answer.

    On the main thread, Ctrl-C and SIGTERM end the run, which then is not `complete`.
    """
    check_files(load)
    stops = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()

    async def run() -> LoadRun:
        stop = asyncio.Event()
        async with AsyncExitStack() as opened:
            try:
                opening = target.open(at_once(load), trial_requests(load.requests))
                await asyncio.wait_for(opened.enter_async_context(opening), timeout_s)
            except asyncio.TimeoutError:
                raise AttemptTimeout(f"{target.name} was not ready within {timeout_s:g} s") from None
            for number in stops:
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            return await run_load(target, load, timeout_s=timeout_s, on_progress=on_progress, stop=stop)

    before = {number: signal.getsignal(number) for number in stops}
    try:
        # The load may be a million objects: collections during the run need not scan them.
        with _frozen_objects():
            return asyncio.run(run())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _frozen_objects() -> Iterator[None]:
    by_caller = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not by_caller:
            gc.unfreeze()


async def run_load(
    target: Target,
    load: RequestLoad,
    *,
    timeout_s: float = TIMEOUT_S,
    on_progress: OnProgress | None = None,
    stop: asyncio.Event | None = None,
) -> LoadRun:
    """Send `load` to the open `target`; each request ends with an error after `timeout_s`.

    `stop` ends the run: requests in flight are recorded as interrupted, unsent ones not at all.
    """
    return await _Run(target, load, timeout_s, on_progress, stop or asyncio.Event()).run()


def check_files(load: RequestLoad) -> None:
    """Raise the soft limit of open files to what `load` needs, or `SetupError` if the hard limit is too low.

    An open loop needs a socket for each request due within one second.
    """
    needed = OTHER_FILES + (load.concurrency or _most_within(load, 1.0))
    most = raise_file_limit(needed)
    if most < needed:
        raise SetupError(
            f"this load has up to {needed - OTHER_FILES} requests in flight, and this process may open "
            f"{most} files: raise the limit (ulimit -n {needed}), or send fewer at a time"
        )


def at_once(load: RequestLoad) -> int:
    return max(1, load.concurrency or _most_within(load, AT_ONCE_S))


def _most_within(load: RequestLoad, seconds: float) -> int:
    due_s = sorted(one.due_s or 0.0 for one in load.requests)
    return max((bisect_right(due_s, at_s + seconds) - index for index, at_s in enumerate(due_s)), default=0)


@dataclass(slots=True, eq=False)
class _Flight:
    request: LoadRequest
    due_s: float
    clock: Callable[[], float]
    sent_s: float | None = None
    first_byte_s: float | None = None
    ended_s: float = 0.0
    chunks_s: array[float] = field(default_factory=lambda: array("d"))
    chunk_tokens: array[int] = field(default_factory=lambda: array("l"))
    status: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    expired: bool = False

    def on_piece(self, piece: Piece) -> None:
        if piece.status is not None:
            self.status = piece.status
            return
        now_s = self.clock()
        if self.first_byte_s is None:
            self.first_byte_s = now_s
        if piece.content:
            self.chunks_s.append(now_s)
            self.chunk_tokens.append(UNKNOWN if piece.tokens is None else piece.tokens)
        if piece.output_tokens is not None:
            self.output_tokens = piece.output_tokens
        if piece.prompt_tokens is not None:
            self.prompt_tokens = piece.prompt_tokens
        if piece.cached_tokens is not None:
            self.cached_tokens = piece.cached_tokens
        if piece.finish_reason is not None:
            self.finish_reason = piece.finish_reason

    def record(self, start_s: float) -> RequestRecord:
        def since(at_s: float | None) -> float | None:
            return None if at_s is None else at_s - start_s

        request = self.request
        pairs = zip(self.chunks_s, self.chunk_tokens, strict=True)
        return RequestRecord(
            index=request.index,
            due_s=self.due_s,
            sent_s=since(self.sent_s),
            ended_s=self.ended_s - start_s,
            first_byte_s=since(self.first_byte_s),
            chunks=tuple(
                Chunk(at_s - start_s, None if tokens == UNKNOWN else tokens) for at_s, tokens in pairs
            ),
            asked_prompt_tokens=request.prompt_tokens,
            asked_output_tokens=request.output_tokens,
            asked_exact=request.exact,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            finish_reason=self.finish_reason,
            status=self.status,
            error=self.error,
            group=request.group,
            session=request.session,
        )


class _Run:
    def __init__(
        self,
        target: Target,
        load: RequestLoad,
        timeout_s: float,
        on_progress: OnProgress | None,
        stop: asyncio.Event,
    ) -> None:
        self._target = target
        self._load = load
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._start_s = 0.0
        self._flights: list[_Flight] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._left = deque(load.requests)
        self._busy: dict[str, deque[LoadRequest]] = {}
        self._free_s: dict[str, float] = {}
        self._ended = self._failed = 0
        self._over = asyncio.Event()
        self._defect: BaseException | None = None

    async def run(self) -> LoadRun:
        began_at = datetime.fromtimestamp(time.time() + START_S, timezone.utc).isoformat()
        self._start_s = self._clock() + START_S
        timers = [self._loop.create_task(self._report())] if self._on_progress else []
        timers.append(self._loop.create_task(self._watch()))
        self._loop.call_at(self._start_s, self._begin)
        try:
            await self._over.wait()
        finally:
            for timer in timers:
                timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, *timers, return_exceptions=True)
        if self._defect is not None:
            raise self._defect
        complete = self._ended == len(self._load.requests) and not any(
            flight.error == INTERRUPTED for flight in self._flights
        )
        records = sorted((one.record(self._start_s) for one in self._flights), key=lambda one: one.index)
        return LoadRun(
            began_at=began_at,
            duration_s=max((one.ended_s for one in records), default=0.0),
            asked={**self._load.asked, "target": self._target.name},
            records=tuple(records),
            complete=complete,
        )

    def _begin(self) -> None:
        if self._load.concurrency is None:
            self._send_due()
            return
        for _ in range(self._load.concurrency):
            self._send_next()

    def _send_due(self) -> None:
        while self._left and not self._stop.is_set():
            due_s = self._left[0].due_s or 0.0
            if self._start_s + due_s > self._clock():
                self._loop.call_at(self._start_s + due_s, self._send_due)
                return
            request = self._left.popleft()
            if not self._wait_for_turn(request):
                # If this call is late, the previous turn may have ended after the planned moment.
                self._send(request, max(due_s, self._free_s.get(request.session or "", 0.0)))
        self._check_over()

    def _send_next(self) -> None:
        while self._left and not self._stop.is_set():
            request = self._left.popleft()
            if not self._wait_for_turn(request):
                self._send(request, self._clock() - self._start_s)
                return
        self._check_over()

    def _wait_for_turn(self, request: LoadRequest) -> bool:
        if request.session is None:
            return False
        waiting = self._busy.get(request.session)
        if waiting is None:
            self._busy[request.session] = deque()
            return False
        waiting.append(request)
        return True

    def _send(self, request: LoadRequest, due_s: float) -> None:
        flight = _Flight(request, due_s, self._clock)
        self._flights.append(flight)
        task = self._loop.create_task(self._fly(flight))
        self._tasks.add(task)
        timer = self._loop.call_later(self._timeout_s, self._expire, flight, task)

        def landed(task: asyncio.Task[None]) -> None:
            timer.cancel()
            self._tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                self._defect = task.exception()
                self._over.set()
            if self._defect is None:
                self._land(flight)

        task.add_done_callback(landed)

    async def _fly(self, flight: _Flight) -> None:
        flight.sent_s = self._clock()
        try:
            await self._target.answer(flight.request, flight.on_piece)
        except EngineError as error:
            flight.error = f"{error.cause}: {error}"
        except asyncio.CancelledError:
            if flight.expired:
                flight.error = f"timeout: no complete answer within {self._timeout_s:g} s"
            else:
                flight.error = INTERRUPTED
        except OSError as error:
            flight.error = f"client: {error.strerror or error}"
        flight.ended_s = self._clock()

    def _expire(self, flight: _Flight, task: asyncio.Task[None]) -> None:
        flight.expired = True
        task.cancel()

    def _land(self, flight: _Flight) -> None:
        if flight.ended_s == 0.0:
            # Cancelled before its first step.
            flight.ended_s, flight.error = self._clock(), INTERRUPTED
        self._ended += 1
        self._failed += flight.error is not None
        session = flight.request.session
        if session is not None:
            waiting = self._busy[session]
            if not waiting:
                del self._busy[session]
                self._free_s[session] = flight.ended_s - self._start_s
            elif not self._stop.is_set():
                request = waiting.popleft()
                self._send(request, max(request.due_s or 0.0, self._clock() - self._start_s))
                return
        if self._load.concurrency is not None:
            self._send_next()
        else:
            self._check_over()

    def _check_over(self) -> None:
        if not self._tasks and (self._stop.is_set() or not (self._left or self._busy)):
            self._over.set()

    async def _watch(self) -> None:
        await self._stop.wait()
        self._over.set()

    async def _report(self) -> None:
        assert self._on_progress is not None
        while True:
            await asyncio.sleep(PROGRESS_S)
            passed_s = self._clock() - self._start_s
            sent = len(self._flights)
            self._on_progress(
                LoadProgress(len(self._load.requests), sent, self._ended, self._failed, passed_s)
            )
