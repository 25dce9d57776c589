"""Blocks an operator's input while its calls or a shard's queue are full: Flink's backpressure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from forebay.clock import Clock
from forebay.errors import ForebayError
from forebay.flink.jvm_task import is_cancelled
from forebay.flink.metrics import FlinkMetrics, InferenceCounters
from forebay.flink.request_pool import RequestPool
from forebay.flink.shard_timers import Shard
from forebay.stateful.machine import Room

ROOM_WAIT_S = 0.04
LOOK_S = 0.004
MORE_FOR_BARRIERS = 1.25
MAX_SHARE = 1 / 64

ANSWERS = 256
FACTOR = 1.5
FIRST_S = 0.04
LONGEST_S = 3600.0


def refuse_if_cancelled() -> None:
    # If the task's thread does not end by itself, Flink ends the JVM after three minutes.
    if is_cancelled():
        raise ForebayError("the job was cancelled while calls were awaited")


class Backpressure:
    def __init__(
        self,
        calls: RequestPool,
        counts: InferenceCounters,
        metrics: FlinkMetrics,
        barrier_waits: Callable[[], bool],
        *,
        capacity: int,
        clock: Clock,
    ) -> None:
        self._calls = calls
        self._counts = counts
        self._metrics = metrics
        self._barrier_waits = barrier_waits
        self._capacity = capacity
        self._clock = clock
        self._room_wait = RoomWait(capacity)
        self._most_queued = MORE_FOR_BARRIERS * capacity

    def make_room(self, shard: Shard, of: str, take: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Wait, but not for long, for room for an event of key `of`; meanwhile yield what `take` returns.

        It runs no mails: the event has left the input but is not in the state yet, so a checkpoint would lose
        it. If a barrier waits, the event joins the queue at once, even a full one.
        """
        blocked_s: float | None = None
        seen_s = 0.0
        while (room := shard.machine.room(of)) != "queue":
            if room == "slot" and (
                self._calls.has_room() or (blocked_s is not None and self._calls.may_queue())
            ):
                self._room_wait.over()
                break
            if blocked_s is None:
                blocked_s = seen_s = self._clock.monotonic_s()
            else:
                refuse_if_cancelled()
                yield from take()
                if seen_s - blocked_s >= self._longest_wait_s(shard, room, of, blocked_s, seen_s):
                    return
                if room == "slot" and self._calls.load.pending < self._most_queued and self._barrier_waits():
                    return
            if room == "slot":
                self._wait_for_slot()
            elif self._calls.wait_ready(shard.key, ROOM_WAIT_S):
                yield from take()
            seen_s = self._note_wait(seen_s)
        if shard.full_since:
            shard.full_since.pop(of, None)
            if room == "queue":
                shard.full_since.pop(None, None)

    def _wait_for_slot(self) -> None:
        for _ in range(round(ROOM_WAIT_S / LOOK_S)):
            if self._calls.wait_for_room(LOOK_S) or self._barrier_waits():
                return

    def _longest_wait_s(self, shard: Shard, room: Room, of: str, blocked_s: float, now_s: float) -> float:
        if room == "slot":
            return self._room_wait.most_s(now_s, self._calls.finished, self._calls.load.pending)
        since_s = shard.full_since.setdefault(of if room == "full key" else None, blocked_s)
        return (now_s - since_s) * min(MAX_SHARE, 1 / self._capacity)

    def _note_wait(self, since_s: float) -> float:
        now_s = self._clock.monotonic_s()
        self._counts.waited_s += now_s - since_s
        self._metrics.flush_if_due(now_s)
        return now_s


class RoomWait:
    """The longest wait of an event if the queue is full: 1.5 times the mean time per answer of a busy spell.

    So the queue shrinks while calls are answered. Without answers, it grows with the logarithm of the outage.
    After a restart, the length of the queue shows how long the spell has lasted.
    """

    def __init__(self, capacity: int) -> None:
        self._times: deque[float] = deque(maxlen=max(ANSWERS, 4 * capacity))
        self._since_s: float | None = None
        self._finished = 0

    def most_s(self, now_s: float, finished: int, queued: int) -> float:
        window = self._times.maxlen or 0
        if self._since_s is None:
            self._since_s, self._finished = now_s - _lasted_s(queued, window), finished
        self._times.extend([now_s] * min(window, finished - self._finished))
        self._finished = finished
        oldest_s = self._times[0] if len(self._times) == window else self._since_s
        return FACTOR * (now_s - oldest_s) / window

    def over(self) -> None:
        self._since_s = None
        self._times.clear()


def _lasted_s(queued: int, window: int) -> float:
    return min(LONGEST_S, FIRST_S * math.exp(min(FACTOR * queued / window, 50.0)))
