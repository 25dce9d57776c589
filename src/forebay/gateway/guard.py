"""What may end a request from outside: its client hangs up, or its time is over."""

from __future__ import annotations

import asyncio
from types import TracebackType

from forebay.gateway.headers import Receive


class HungUp(Exception):
    """The client has gone; nobody is there to be told anything."""


class TimeOver(Exception):
    """The time that was given is over."""


class TimeLimit:
    """Within it, the current task is given `seconds`; then what it waits for ends with `TimeOver`.

    Costs one timer, where `asyncio.wait_for` takes a task. Infinite seconds are no limit.
    """

    __slots__ = ("_over", "_seconds", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> TimeLimit:
        task = asyncio.current_task()
        assert task is not None
        if self._seconds != float("inf"):
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end, task)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._over and kind is asyncio.CancelledError:
            forget_cancelling()
            raise TimeOver from None

    def _end(self, task: asyncio.Task[object]) -> None:
        self._over = True
        task.cancel()


class UntilHungUp:
    """Within it, the current task ends with `HungUp` once the client has gone. The body has been read."""

    __slots__ = ("_gone", "_watch")

    def __init__(self, receive: Receive) -> None:
        self._gone = False
        task = asyncio.current_task()
        assert task is not None
        self._watch = asyncio.create_task(self._wait(receive, task))

    async def __aenter__(self) -> UntilHungUp:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        if self._gone and kind is asyncio.CancelledError:
            forget_cancelling()
            raise HungUp from None

    async def _wait(self, receive: Receive, task: asyncio.Task[object]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        task.cancel()


def forget_cancelling() -> None:
    """To be called where a cancellation of the current task has been taken for something else.

    From Python 3.11 a task counts how often it was cancelled; this one goes on.
    """
    uncancel = getattr(asyncio.current_task(), "uncancel", None)
    if uncancel is not None:
        uncancel()
