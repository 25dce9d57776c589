"""Run a program's job: monitor it, cancel it on Ctrl-C, raise its failure in one line."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.common import JobClient, JobExecutionResult
from pyflink.datastream import StreamExecutionEnvironment

from forebay.api.progress import ROUND_S, JobMonitor, followed
from forebay.api.user_functions import function_of
from forebay.errors import FunctionFailed, LaunchError, PipelineFailed
from forebay.flink.environment import FlinkConfig, embedded_rest, log_dir
from forebay.flink.job import JvmGone, RunningJob, end_job, root_cause, start_job
from forebay.flink.rest import FlinkRest

log = logging.getLogger("forebay")

CANCEL_S = 60.0
MAX_TASK_CHARS = 120
AGAIN = "the job was cancelled, because it failed twice in a row and a restart would not fix it"


class ProgramEnvironment(StreamExecutionEnvironment):
    """Its `execute` monitors the job until it ends.

    `log_every_s`: seconds between log lines with the job's counts; None: never.
    """

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
    """Waits on a thread: Ctrl-C interrupts a wait of the main thread, and would break a Py4J call, which
    logs a traceback.
    """
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
