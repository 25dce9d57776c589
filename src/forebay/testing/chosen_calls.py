"""Calls of an operator that are answered when a test says so, on the test's own thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from forebay.flink.ordering import Answer, Ordering
from forebay.flink.request_pool import Handler, RequestPool
from forebay.records import KeyedEvent, Result
from forebay.testing.keyed_state import WallClock

AnswerTo = Callable[[KeyedEvent], Answer]


class ChosenCalls(RequestPool):
    """`RequestPool` without its thread: slots, room and release are the real ones.

    `out` are the calls in flight, in the order of their starts; `answer` answers one. Where the operator
    waits, time passes and the oldest is answered: nothing else could end its wait.
    """

    def __init__(
        self,
        open_answerer: Callable[[], Awaitable[Handler]],
        *,
        capacity: int,
        ordering: Ordering = "unordered",
        answer_to: AnswerTo,
        clock: WallClock,
        on_ready: Callable[[int], None] = lambda shard: None,
    ) -> None:
        super().__init__(open_answerer, capacity=capacity, ordering=ordering, on_ready=on_ready)
        self._loop.close()
        self._loop: Any = _NoLoop()
        self._answer_to = answer_to
        self._clock = clock
        self.out: list[tuple[int, KeyedEvent, bool]] = []

    def start(self) -> None:
        pass

    def close(self) -> None:
        self.out.clear()

    def answer(self, which: int) -> bool:
        """Answer a call in flight, counted round; False where there is none."""
        if not self.out:
            return False
        shard, item, reissued = self.out.pop(which % len(self.out))
        answer = self._answer_to(item)
        if reissued and isinstance(answer, Result):
            answer = replace(answer, reissued=True)
        self._finish(shard, item.id, answer)
        return True

    def _start_pending(self) -> None:
        self._waking = False
        while self._pending and self._in_flight < self._capacity:
            self._in_flight += 1
            self.out.append(self._pending.popleft())

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        if not condition():
            self._clock.advance(timeout_s)
            self.answer(0)
        return condition()


class _NoLoop:
    """Runs at once what is called soon."""

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        callback()
