"""Log the progress of a program's job, and detect failures that no restart fixes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

from forebay.api.user_functions import function_of
from forebay.connectors.event_time import SUSPECT_TIMES
from forebay.counted import counted
from forebay.errors import LaunchError
from forebay.flink.job import JobFailure
from forebay.flink.metrics import TOO_LARGE

log = logging.getLogger("forebay")

Counts = Mapping[str, Mapping[str, float]]
"""Counters and gauges by operator, summed over its subtasks."""
ROUND_S = 1.0
ENDING = frozenset(("FAILING", "FAILED", "CANCELLING", "CANCELED"))
"""Flink's states of a job that it does not restart."""
IN_A_ROW_MS = 600_000
"""Failures further apart are not in a row."""
JUDGE_EVERY = 3
"""Rounds between checks for dead letters: Flink's first answer is empty."""
MIN_DEAD = 10
DEAD_SHARE = 0.9
END_S = 2.0


class ProgramJob(Protocol):
    """A job to monitor; `forebay.flink.job.RunningJob` is one."""

    def state(self) -> str: ...

    def all_run(self) -> bool: ...

    def failures(self) -> list[JobFailure]: ...

    def by_operator(self) -> Counts: ...

    def cancel(self) -> None: ...


class JobMonitor:
    """Polls a job in rounds, and logs what is new.

    At `WARNING`: each restart with its cause, and an operator all of whose events become dead letters. At
    `INFO`, every `count_every` rounds (None: never): the counts of each operator. If `INFO` is off, counts
    are polled only until each operator has had a result.

    Cancels a job in which the same function of a sink has failed twice in a row: it would fail again.

    Attributes:
        last: The last failure; None before the first.
        hopeless: Whether the job was cancelled for that reason.
    """

    def __init__(self, job: ProgramJob, count_every: int | None) -> None:
        self._job = job
        self._count_every = count_every
        self._rounds = 0
        self._runs = False
        self._said: list[str] = []
        self._judged: set[str] = set()
        self._unjudged = True
        self.last: JobFailure | None = None
        self.hopeless = False
        self._cancelled = False
        self._warned = False

    def look(self) -> None:
        """Raises `LaunchError` if Flink does not answer."""
        self._rounds += 1
        self._see_failures()
        if not self._runs and log.isEnabledFor(logging.INFO) and self._job.all_run():
            self._runs = True
            log.info("the job runs")
        report = self._count_every and not self._rounds % self._count_every and log.isEnabledFor(logging.INFO)
        if report or (self._unjudged and not self._rounds % JUDGE_EVERY):
            self._see_counts(report=bool(report))

    def _see_failures(self) -> None:
        seen_ms = 0 if self.last is None else self.last.time_ms
        new = [failure for failure in self._job.failures() if failure.time_ms > seen_ms]
        if new and not self.hopeless:
            self._runs = False
            restarts = self._job.state() not in ENDING
            for failure in new:
                self.hopeless = self.hopeless or in_a_row(self.last, failure)
                self.last = failure
                if restarts and not self.hopeless:
                    log.warning("Flink restarts the job: %s", failure.cause)
        if self.hopeless and not self._cancelled:
            self._job.cancel()
            self._cancelled = True

    def _see_counts(self, *, report: bool) -> None:
        counts = self._job.by_operator()
        if report:
            now = lines(counts)
            for line in now:
                if line not in self._said:
                    log.info("%s", line)
            self._said = now
        suspect = sum(int(found.get("suspect_times", 0)) for found in counts.values())
        if suspect and not self._warned:
            self._warned = True
            what = counted(suspect, "event so far has a time", "events so far have times")
            log.warning("%s in 1970 or 1900: %s", what, SUSPECT_TIMES)
        self._judge({name: found for name, found in counts.items() if "dead_letters" in found})

    def _judge(self, operators: Counts) -> None:
        for name, found in operators.items():
            if name in self._judged:
                continue
            if all_dead(found):
                self._judged.add(name)
                log.warning(
                    "%s: all of the first %d events became dead letters. Their detail has the reason: "
                    "write the stream of dead letters somewhere, or print it",
                    name,
                    int(found["dead_letters"]),
                )
            elif found.get("results", 0):
                self._judged.add(name)
        self._unjudged = not operators or not self._judged.issuperset(operators)


def in_a_row(before: JobFailure | None, now: JobFailure) -> bool:
    """Both are of the same function of a sink, the second soon after the first."""
    if before is None or now.time_ms - before.time_ms > IN_A_ROW_MS:
        return False
    function = function_of(now.cause)
    return function is not None and function == function_of(before.cause)


def all_dead(found: Mapping[str, float]) -> bool:
    """No result, and dead letters for nearly all events; a few may be in progress."""
    dead = found.get("dead_letters", 0)
    return not found.get("results", 0) and dead >= max(MIN_DEAD, DEAD_SHARE * _came_in(found))


@contextmanager
def followed(follower: JobMonitor, every_s: float) -> Iterator[None]:
    """Poll every `every_s` seconds on a thread while the block runs, and once at its end, when Flink may
    be gone. Exceptions such as Ctrl-C do not wait for that.
    """
    ended = threading.Event()
    wait = partial(ended.wait, every_s)
    thread = threading.Thread(target=follow, args=(follower.look, wait), name="progress", daemon=True)
    thread.start()
    interrupted = True
    try:
        yield
        interrupted = False
    except Exception:
        interrupted = False
        raise
    finally:
        ended.set()
        if not interrupted:
            thread.join(END_S)


def follow(look: Callable[[], None], wait: Callable[[], bool]) -> None:
    """Call `look` after each `wait`, the last time once that returns True. Ignores failures: the job may
    be starting or ending.
    """
    ended = False
    while not ended:
        ended = wait()
        with suppress(LaunchError):
            look()


def lines(counts: Counts) -> list[str]:
    """One for each operator that has had an event since its start, and for each sink that rejected
    results.
    """
    events = [_line(name, found) for name, found in sorted(counts.items()) if _came_in(found)]
    refused = {name: int(found.get(TOO_LARGE, 0)) for name, found in sorted(counts.items())}
    return events + [f"{name}: {count} too large for the topic" for name, count in refused.items() if count]


def _came_in(found: Mapping[str, float]) -> int:
    return int(found.get("accepted", 0) + found.get("restored", 0))


def _line(name: str, found: Mapping[str, float]) -> str:
    def whole(metric: str) -> int:
        return int(found.get(metric, 0))

    return (
        f"{name}: {counted(_came_in(found), 'event')} in, {counted(whole('results'), 'result')}, "
        f"{counted(whole('dead_letters'), 'dead letter')}, {whole('in_flight')} in flight, "
        f"{whole('pending')} waiting"
    )
