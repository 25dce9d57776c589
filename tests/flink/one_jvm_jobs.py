"""Several jobs in one JVM, each with Python threads that call Java: `one_jvm_jobs.py FOLDER EVENTS`.

A separate process, because a crash in native code would end the JVM of all other tests.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.harness.operators import Runs

from forebay.engine import Deadline, Engine
from forebay.records import Completion, Request
from forebay.testing.engine import ScriptedEngineFactory
from forebay.testing.script import Mixture
from forebay.testing.waiting import wait_until

CANCELLED = 3
OBJECTS = 50
DELAY = Mixture(((0.9, 0.005), (0.1, 0.2)))


class CallsJava:
    """An engine that calls Java from its own thread and, with each call, from the event loop."""

    def __call__(self) -> Engine:
        # Found by PyFlink on the task's thread: on others, pemja finds no class.
        from pyflink.fn_execution.embedded.java_utils import JDuration

        # Made once: each Java object that a call on such a thread returns stays in memory.
        return _CallsJava(ScriptedEngineFactory(DELAY)(), [JDuration.ofMillis(n) for n in range(OBJECTS)])


class _CallsJava:
    def __init__(self, inner: Engine, objects: list[Any]) -> None:
        self._inner = inner
        self._objects = objects
        self._wrong = False
        self._closed = False
        self._thread = threading.Thread(target=self._call_on_and_on)
        self._thread.start()

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        self._call(len(request.id))
        if self._wrong:
            raise ZeroDivisionError("Java gave what belongs to another call")
        return await self._inner.complete(request, timeout_s=timeout_s, deadline=deadline)

    async def close(self) -> None:
        self._closed = True
        self._thread.join()
        await self._inner.close()

    def _call_on_and_on(self) -> None:
        while not self._closed:
            for number in range(OBJECTS):
                self._call(number)
            time.sleep(0.002)

    def _call(self, number: int) -> None:
        if self._objects[number].toMillis() != number:
            self._wrong = True


def main(folder: Path, events: int) -> None:
    def runs(name: str, **settings: object) -> Runs:
        made = Runs(folder / name, log_dir=folder / "logs", engine=CallsJava(), capacity=16, **settings)
        last = {"n": events, "text": "((hold:last))", "at": 20 * events}
        made.feed([*({"n": n, "text": f"event {n}", "at": 20 * n} for n in range(events)), last])
        return made

    ending = [runs(f"parallelism-{n}", event_time=True) for n in (2, 4)]
    jobs = [each.start(parallelism=n) for each, n in zip(ending, (2, 4), strict=True)]
    for number in range(CANCELLED):
        endless = runs(f"cancelled-{number}", follow=True)
        job = endless.start(parallelism=2)
        wait_until(lambda each=endless: len(each.seen()) > 50)
        # Flink reads the metrics of all jobs meanwhile.
        wait_until(lambda: all(each.ended() == "" or each.counts() for each in jobs))
        endless.stop(job)
    for each, job in zip(ending, jobs, strict=True):
        each.release("last")
        each.finish(job)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
