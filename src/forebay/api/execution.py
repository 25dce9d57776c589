"""Run a program's job: monitor it, cancel it on Ctrl-C, raise its failure in one line."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.common import JobClient, JobExecutionResult
from pyflink.datastream import StreamExecutionEnvironment

from forebay.api.objects import function_of
from forebay.connectors.event_time import SUSPECT_TIMES
from forebay.errors import FunctionFailed, LaunchError, PipelineFailed
from forebay.flink.environment import FlinkConfig, embedded_rest, log_dir
from forebay.flink.job import JobFailure, JvmGone, RunningJob, end_job, root_cause, start_job
from forebay.flink.metric_names import TOO_LARGE
from forebay.flink.rest import FlinkRest
from forebay.untrusted_text import counted

Counts = Mapping[str, Mapping[str, float]]
"""Counters and gauges by operator, summed over its subtasks."""
ROUND_S = 1.0
ENDING = frozenset(("FAILING", "FAILED", "CANCELLING", "CANCELED"))
IN_A_ROW_MS = 600_000
JUDGE_EVERY = 3
"""Rounds between checks for dead letters: Flink's first answer is empty."""
MIN_DEAD = 10
DEAD_SHARE = 0.9
END_S = 2.0


class ProgramJob(Protocol):
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

    Cancels a job in which the same function of a sink has failed twice in a row (`hopeless`): it would fail
    again.
    """

    def __init__(self, job: ProgramJob, count_every: int | None) -> None:
        self._job = job
        self._count_every = count_every
        self._rounds = 0
        self._runs = False
        self._reported: list[str] = []
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
                if line not in self._reported:
                    log.info("%s", line)
            self._reported = now
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
            elif passed(found):
                self._judged.add(name)
        self._unjudged = not operators or not self._judged.issuperset(operators)


def in_a_row(before: JobFailure | None, now: JobFailure) -> bool:
    if before is None or now.time_ms - before.time_ms > IN_A_ROW_MS:
        return False
    function = function_of(now.cause)
    return function is not None and function == function_of(before.cause)


def all_dead(found: Mapping[str, float]) -> bool:
    dead = found.get("dead_letters", 0)
    return not passed(found) and dead >= max(MIN_DEAD, DEAD_SHARE * _came_in(found))


def passed(found: Mapping[str, float]) -> bool:
    """Whether an operator works: it has results, or enough of its records are not dead letters."""
    good = found.get("records", 0) - found.get("dead_letters", 0)
    return found.get("results", 0) > 0 or good >= MIN_DEAD


@contextmanager
def followed(follower: JobMonitor, every_s: float) -> Iterator[None]:
    """Poll every `every_s` seconds on a thread while the block runs, and once at its end. Exceptions such as
    Ctrl-C do not wait for that."""
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
    """Call `look` after each `wait`, the last time once that returns True. Ignores failures: the job may be
    starting or ending."""
    ended = False
    while not ended:
        ended = wait()
        with suppress(LaunchError):
            look()


def lines(counts: Counts) -> list[str]:
    """One for each operator that has had an event, and for each sink that rejected results."""
    events = [_line(name, found) for name, found in sorted(counts.items()) if _came_in(found)]
    refused = {name: int(found.get(TOO_LARGE, 0)) for name, found in sorted(counts.items())}
    return events + [f"{name}: {count} too large for the topic" for name, count in refused.items() if count]


def _came_in(found: Mapping[str, float]) -> int:
    return int(sum(found.get(metric, 0) for metric in ("accepted", "restored", "records")))


def _line(name: str, found: Mapping[str, float]) -> str:
    def whole(metric: str) -> int:
        return int(found.get(metric, 0))

    if "records" in found:
        return (
            f"{name}: {counted(_came_in(found), 'event')} in, {counted(whole('dead_letters'), 'dead letter')}"
        )
    return (
        f"{name}: {counted(_came_in(found), 'event')} in, {counted(whole('results'), 'result')}, "
        f"{counted(whole('dead_letters'), 'dead letter')}, {whole('in_flight')} in flight, "
        f"{whole('pending')} waiting"
    )


log = logging.getLogger("forebay")

CANCEL_S = 60.0
MAX_TASK_CHARS = 120
AGAIN = "the job was cancelled, because it failed twice in a row and a restart would not fix it"


class ProgramEnvironment(StreamExecutionEnvironment):
    """Its `execute` monitors the job until it ends. `log_every_s`: between log lines with counts; None:
    never."""

    def __init__(
        self, env: StreamExecutionEnvironment, config: FlinkConfig, log_every_s: float | None
    ) -> None:
        super().__init__(env._j_stream_execution_environment)
        self._config = config
        self._log_every_s = log_every_s

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Run the job; blocks until it has ended.

        Raises `FunctionFailed` if a sink's function failed twice in a row, `PipelineFailed` if the job failed
        otherwise or was cancelled, and the errors of `start_job`. Other exceptions during the wait, such as
        Ctrl-C, cancel the job and are raised.
        """
        client = start_job(self, job_name)
        result = awaited(client)
        rest = rest_of(client, self._config)
        job = None if rest is None else RunningJob(client, rest)
        follower = None if job is None else JobMonitor(job, self._count_every())
        try:
            with nullcontext() if follower is None else followed(follower, self._round_s()):
                return result.result()
        except Exception as error:
            raise self._failure(error, follower) from None
        except BaseException:
            self._cancel(client, rest)
            raise

    def _round_s(self) -> float:
        return min(ROUND_S, self._log_every_s or ROUND_S)

    def _count_every(self) -> int | None:
        return None if self._log_every_s is None else round(self._log_every_s / self._round_s())

    def _failure(self, error: Exception, follower: JobMonitor | None) -> PipelineFailed:
        if isinstance(error, OSError) or (
            isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
        ):
            return JvmGone(f"the JVM that ran the job is gone ({type(error).__name__}); {self._log()}")
        cause = root_cause(str(error).partition("\n: ")[2] or str(error))
        last = None if follower is None else follower.last
        if last is not None and follower is not None and follower.hopeless:
            cause = last.cause
        if function_of(cause) is not None:
            reason = cause.removeprefix(f"{FunctionFailed.__name__}: ")
            again = f"; {AGAIN}" if follower is not None and follower.hopeless else ""
            return FunctionFailed(f"the Flink job failed: {reason}{again}; {self._log()}")
        task = f" in {last.task[:MAX_TASK_CHARS]}" if last and last.task and last.cause == cause else ""
        return PipelineFailed(f"the Flink job failed{task}: {cause}; {self._log()}")

    def _log(self) -> str:
        if self._config.cluster is not None:
            return f"Flink's log is the cluster's: http://{self._config.cluster}"
        return f"Flink's log is in {log_dir(self._config)}"

    def _cancel(self, client: JobClient, rest: FlinkRest | None) -> None:
        id = str(client.get_job_id())
        kept = "" if self._config.checkpoint_dir is None else "; its checkpoints stay"
        where = "" if self._config.cluster is None else f" at {self._config.cluster}"
        log.warning("the job %s%s is cancelled%s", id, where, kept)
        try:
            if rest is None:
                client.cancel().result()
            else:
                end_job(rest, id, CANCEL_S)
        except (LaunchError, PipelineFailed, Py4JError) as error:
            # An embedded Flink ends with its job.
            if self._config.cluster is not None:
                log.warning("the job %s%s may still run: %s", id, where, error)


def awaited(client: JobClient) -> Future[JobExecutionResult]:
    """Waits on a thread: Ctrl-C interrupts a wait of the main thread, and would break a Py4J call."""
    result: Future[JobExecutionResult] = Future()

    def wait() -> None:
        try:
            result.set_result(client.get_job_execution_result().result())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=wait, name="job", daemon=True).start()
    return result


def rest_of(client: JobClient, config: FlinkConfig) -> FlinkRest | None:
    """None if the address of an embedded Flink cannot be found."""
    if config.cluster is not None:
        return FlinkRest(f"http://{config.cluster}")
    try:
        # An embedded Flink serves at any free port, which only its cluster has, and only the client has the
        # cluster.
        field = client._j_job_client.getClass().getDeclaredField("miniCluster")
        field.setAccessible(True)
        address = str(field.get(client._j_job_client).getRestAddress().get())
    except Py4JError:
        return None
    return embedded_rest(config, urlsplit(address).port or 0)
