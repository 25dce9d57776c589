"""A subtask's calls in flight: an event loop on its own thread, and a mailbox per shard."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent import futures
from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol

from forebay.errors import ForebayError
from forebay.flink.one_core import LOOK_S, OneCore
from forebay.processes import name_thread
from forebay.records import DeadLetter, KeyedEvent, Result

log = logging.getLogger(__name__)

Ordering = Literal["unordered", "key"]
"""When a finished call may be emitted: at once, or after those before it under its key."""
Answer = Result | DeadLetter
HELD_PER_SLOT = 4
MOST_TAKEN = 8
GATHER_S = 0.001
CLOSE_S = 10.0
LOST_S = 1.0


class Handler(Protocol):
    """Turns events into answers on the event loop on which it was opened."""

    def accept(self, item: KeyedEvent, *, restored: bool) -> None:
        """Note that an event waits. Called on the submitting thread, once before `answer`."""
        ...

    async def answer(self, item: KeyedEvent) -> Answer: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PoolLoad:
    pending: int
    in_flight: int
    finished: int


class RequestPool:
    """At most `capacity` calls in flight; the next one takes a free slot at once.

    `submit`, `take` and the waits are for the operator's thread, and raise `ForebayError` after an unexpected
    failure of the answerer. `open_answerer` and `on_ready` are called on the loop's thread; `on_ready` not
    again before `ready` was called.
    """

    def __init__(
        self,
        open_answerer: Callable[[], Awaitable[Handler]],
        *,
        capacity: int,
        ordering: Ordering = "unordered",
        on_ready: Callable[[], None] = lambda: None,
        core: OneCore | None = None,
    ) -> None:
        self._core = core
        self._core_answers = 0
        self._core_planned = False
        self._open_answerer = open_answerer
        self._on_ready = on_ready
        self._capacity = capacity
        self._ordering: Ordering = ordering
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._pending: deque[tuple[int, KeyedEvent]] = deque()
        self._ready: dict[int, deque[tuple[str, Answer]]] = {}
        self._releases: dict[int, OrderedByKey] = {}
        self._in_flight = 0
        self._finished = 0
        self._call_s = 0.0
        self._unreleased = 0
        self._releasable = 0
        self._limit = float(capacity)
        self._waking = False
        self._looked_s = self._notified_s = -inf
        self._notify_planned = self._waiting = False
        self._called_s = -inf
        self._closing = False
        self._failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answerer: Handler | None = None
        self._thread = threading.Thread(target=self._run_loop, name="forebay-calls", daemon=True)

    def start(self) -> None:
        """Block until the engine is open. Raises its errors."""
        self._thread.start()
        try:
            self._answerer = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        except BaseException:
            self._stop_loop()
            raise

    def close(self) -> None:
        """Abort calls and release the engine. Blocks for at most `CLOSE_S`."""
        if self._thread.is_alive():
            core, self._core = self._core, None
            if core is not None:
                core.leave()
            aborted = asyncio.run_coroutine_threadsafe(self._abort(), self._loop)
            try:
                aborted.result(CLOSE_S)
            except futures.TimeoutError:
                # Flink would end the JVM if a task did not end.
                log.warning("a call ignored its cancellation for %g s; its thread stays in memory", CLOSE_S)
                self._loop.call_soon_threadsafe(self._loop.stop)
                return
            except BaseException:
                self._stop_loop()
                raise
            self._stop_loop()
        elif not self._loop.is_closed():
            self._loop.close()

    @property
    def load(self) -> PoolLoad:
        return PoolLoad(pending=len(self._pending), in_flight=self._in_flight, finished=self._unreleased)

    @property
    def finished(self) -> int:
        return self._finished

    @property
    def call_s(self) -> float:
        """A moving average that a fast call lowers at once, so that a few slow calls do not hide it."""
        return self._call_s

    def submit(self, shard: int, item: KeyedEvent, *, restored: bool = False) -> None:
        """Never blocks. `item.id` must not be in use in `shard`. `restored` calls may exceed the capacity."""
        with self._lock:
            release = self._releases.get(shard)
            if release is None:
                release = self._releases[shard] = OrderedByKey()
                self._ready[shard] = deque()
            release.accept(item.id, item.key if self._ordering == "key" else "")
            if self._answerer is not None:
                self._answerer.accept(item, restored=restored)
            self._pending.append((shard, item))
            if restored:
                self._limit = max(self._limit, len(self._pending) + self._in_flight)
            wake = not self._waking and self._in_flight < self._capacity
            self._waking = self._waking or wake
        if wake:
            self._loop.call_soon_threadsafe(self._look)

    def ready(self) -> list[int]:
        # Before the look: what becomes ready after it must be reported.
        self._called_s = -inf
        self._raise_failure()
        return [shard for shard, answers in self._ready.items() if answers]

    def take(self, shard: int) -> list[tuple[str, Answer]]:
        ready = self._ready.get(shard)
        if not ready:
            self._raise_failure()
            return []
        with self._lock:
            answers = [ready.popleft() for _ in range(min(MOST_TAKEN, len(ready)))]
            self._releasable -= len(answers)
            self._unreleased -= len(answers)
        return answers

    def has_room(self) -> bool:
        """False if all slots are taken, or too many finished answers wait for an earlier one of their key.

        Of restored calls beyond `capacity`, every two that finish make room for one event.
        """
        return len(self._pending) + self._in_flight < self._limit and self._moves()

    def may_queue(self) -> bool:
        return len(self._pending) < self._capacity and self._moves()

    def _moves(self) -> bool:
        return self._unreleased < HELD_PER_SLOT * self._capacity or self._releasable > 0

    def wait_for_room(self, timeout_s: float) -> bool:
        return self._wait_for(self.has_room, timeout_s)

    def wait_ready(self, shard: int, timeout_s: float) -> bool:
        return self._wait_for(lambda: bool(self._ready.get(shard)), timeout_s)

    def wait_any_ready(self, timeout_s: float) -> bool:
        return self._wait_for(lambda: self._releasable > 0, timeout_s)

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            self._waiting = True
            met = self._changed.wait_for(lambda: condition() or self._failure is not None, timeout_s)
            self._waiting = False
            self._raise_failure()
            return met

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise ForebayError(f"a call failed unexpectedly: {self._failure!r}") from self._failure

    async def _open(self) -> Handler:
        return await self._open_answerer()

    def _run_loop(self) -> None:
        name_thread(self._thread.name)
        if self._core is not None:
            self._core.join(pool=True)
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _abort(self) -> None:
        self._closing = True
        with self._lock:
            self._pending.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._answerer is not None:
            await self._answerer.close()

    def _look(self) -> None:
        """Start submitted calls. If more follow quickly, look again shortly, without a wake."""
        now_s = self._loop.time()
        startable = self._pending and self._in_flight < self._capacity
        if startable and now_s - self._looked_s < 2 * GATHER_S:
            self._loop.call_later(GATHER_S, self._look)
        else:
            # Before the look, so that later submissions wake this thread.
            self._waking = False
        self._looked_s = now_s
        self._start_pending()

    def _start_pending(self) -> None:
        with self._lock:
            started = []
            while self._pending and self._in_flight < self._capacity:
                # In this order: `has_room` reads without the lock, and must not see room that does not exist.
                self._in_flight += 1
                started.append(self._pending.popleft())
        if started and self._core is not None and not self._core_planned:
            self._core_planned = True
            self._loop.call_later(LOOK_S, self._look_at_core, self._core)
        for call in started:
            self._tasks.add(self._loop.create_task(self._call(*call)))

    def _look_at_core(self, core: OneCore) -> None:
        if self._core is None:
            return
        answers, self._core_answers = self._finished - self._core_answers, self._finished
        self._core_planned = core.look(answers)
        if self._core_planned:
            self._loop.call_later(LOOK_S, self._look_at_core, core)

    async def _call(self, shard: int, item: KeyedEvent) -> None:
        assert self._answerer is not None
        task = asyncio.current_task()
        assert task is not None
        started_s = self._loop.time()
        try:
            answer = await self._answerer.answer(item)
            if isinstance(answer, Result) and not answer.journaled:
                self._note_duration(self._loop.time() - started_s)
            self._finish(shard, item.id, answer)
        except BaseException as error:
            if self._closing:
                raise
            # An answerer turns every expected failure into a dead letter; everything else is a defect (as is
            # a cancellation when nobody closes), and must fail the job, which then restores, rather than lose
            # a record.
            self._failure = error
            self._notify_soon()
        finally:
            self._tasks.discard(task)

    def _note_duration(self, call_s: float) -> None:
        # A tenth towards the newest, but at most twice the newest: this follows the fast calls of a mixture.
        self._call_s = min(self._call_s + 0.1 * (call_s - self._call_s), 2 * call_s)

    def _finish(self, shard: int, id: str, answer: Answer) -> None:
        with self._lock:
            leaving = self._releases[shard].finish(id, answer)
            self._ready[shard].extend(leaving)
            self._in_flight -= 1
            self._finished += 1
            self._unreleased += 1
            self._releasable += len(leaving)
            self._limit = max(self._capacity, self._limit - 0.5)
        self._notify_soon()
        if self._pending:
            self._start_pending()

    def _notify_soon(self) -> None:
        if self._notify_planned:
            return
        self._notify_planned = True
        if self._loop.time() - self._notified_s < GATHER_S:
            self._loop.call_later(GATHER_S, self._notify)
        else:
            self._loop.call_soon(self._notify)

    def _notify(self) -> None:
        self._notify_planned = False
        self._notified_s = now_s = self._loop.time()
        if self._waiting:
            with self._changed:
                self._changed.notify_all()
        if (self._releasable or self._failure) and now_s - self._called_s > LOST_S:
            self._called_s = now_s
            self._on_ready()


class OrderedByKey:
    """Releases an answer after all that precede it under its key; without a key, at once."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[str]] = {}
        self._keys: dict[str, str] = {}
        self._held: dict[str, Answer] = {}

    def accept(self, id: str, key: str) -> None:
        if key:
            self._queues.setdefault(key, deque()).append(id)
            self._keys[id] = key

    def finish(self, id: str, answer: Answer) -> list[tuple[str, Answer]]:
        if id not in self._keys:
            return [(id, answer)]
        self._held[id] = answer
        key = self._keys[id]
        queue = self._queues[key]
        leaving = []
        while queue and queue[0] in self._held:
            head = queue.popleft()
            del self._keys[head]
            leaving.append((head, self._held.pop(head)))
        if not queue:
            del self._queues[key]
        return leaving


@dataclass(frozen=True, slots=True)
class PollInterval:
    """The period of a shard's wake timer: a share of a call's current duration, within bounds.

    If answers wake their shard, it is `rescue_ms`, because checkpoints contain no wakes.
    """

    share: float = 0.02
    least_ms: int = 1
    most_ms: int = 25
    idle_ms: int = 500
    rescue_ms: int = 1000

    def step_ms(self, call_s: float) -> int:
        return min(self.most_ms, max(self.least_ms, round(call_s * 1000 * self.share)))

    def next_ms(self, now_ms: int, call_s: float) -> int:
        step_ms = self.step_ms(call_s)
        return (now_ms // step_ms + 1) * step_ms
