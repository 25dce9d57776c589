"""A line about what a program's job has done, every few seconds, for whoever listens to the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyflink.common import JobClient, JobExecutionResult
from pyflink.datastream import StreamExecutionEnvironment

from forebay.errors import LaunchError
from forebay.flink.environment import FlinkConfig, embedded_rest
from forebay.flink.job import RunningJob
from forebay.flink.rest import FlinkRest

log = logging.getLogger("forebay")

Counts = Mapping[str, Mapping[str, float]]
"""Counters and gauges of each operator, summed over its subtasks, by the operator's name."""


class LoggingEnvironment(StreamExecutionEnvironment):
    """An environment whose `execute` logs what the job has done, every `every_s` seconds until it ends.

    Where nobody listens (`INFO` of `forebay` is off), Flink is asked for nothing, and `execute` is PyFlink's.
    """

    def __init__(self, env: StreamExecutionEnvironment, config: FlinkConfig, every_s: float) -> None:
        super().__init__(env._j_stream_execution_environment)
        self._config = config
        self._every_s = every_s

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        if not log.isEnabledFor(logging.INFO):
            return super().execute(job_name)
        client = self.execute_async(job_name)
        result = client.get_job_execution_result()
        rest = rest_of(client, self._config)
        if rest is None:
            return result.result()
        with progress_logged(RunningJob(client, rest).by_operator, self._every_s):
            return result.result()


def rest_of(client: JobClient, config: FlinkConfig) -> FlinkRest | None:
    """The REST service of the Flink that runs a job; None where an embedded one does not say where it is."""
    if config.cluster is not None:
        return FlinkRest(f"http://{config.cluster}")
    try:
        # An embedded Flink serves at any free port, which only its cluster knows, and that only the client.
        field = client._j_job_client.getClass().getDeclaredField("miniCluster")
        field.setAccessible(True)
        address = str(field.get(client._j_job_client).getRestAddress().get())
    except Py4JError:
        return None
    return embedded_rest(config, urlsplit(address).port or 0)


@contextmanager
def progress_logged(look: Callable[[], Counts], every_s: float) -> Iterator[None]:
    """Log what `look` finds every `every_s` seconds while the block runs, on a thread of its own."""
    ended = threading.Event()
    wait = partial(ended.wait, every_s)
    threading.Thread(target=follow, args=(look, wait), name="progress", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def follow(look: Callable[[], Counts], wait: Callable[[], bool]) -> None:
    """Log what `look` finds, as far as it is new, each time that `wait` has waited, until that returns True.
    A look that fails is left out: the job may be starting, or ending."""
    said: list[str] = []
    while not wait():
        try:
            now = lines(look())
        except LaunchError:
            continue
        for line in now:
            if line not in said:
                log.info("%s", line)
        said = now


def lines(counts: Counts) -> list[str]:
    """A line for each operator that has had an event since it started."""
    return [_line(name, found) for name, found in sorted(counts.items()) if _came_in(found)]


def _came_in(found: Mapping[str, float]) -> int:
    return int(found.get("accepted", 0) + found.get("restored", 0))


def _line(name: str, found: Mapping[str, float]) -> str:
    def whole(metric: str) -> int:
        return int(found.get(metric, 0))

    return (
        f"{name}: {_came_in(found)} events in, {whole('results')} results, {whole('dead_letters')} dead "
        f"letters, {whole('in_flight')} in flight, {whole('pending')} waiting"
    )
