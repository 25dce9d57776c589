"""Runs one attempt at a job inside the process that holds Flink."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, NoReturn

from forebay.connectors.base import Written
from forebay.connectors.kafka.settings import KafkaSource
from forebay.errors import ForebayError, LaunchError, PipelineFailed, ResultsLost, SettingError, SetupError
from forebay.flink.environment import FlinkConfig, flink_environment
from forebay.flink.job import JvmGone
from forebay.flink.jvm import Jvm
from forebay.flink.thread_mode import FUNCTIONS, import_ahead, import_functions
from forebay.pipeline.attempt import JobAttempt, imports_of, load_ahead
from forebay.pipeline.kafka.transactions import NAMES
from forebay.pipeline.messages import (
    CANCEL,
    DRAIN,
    GO,
    AttemptLost,
    AttemptSpec,
    Cancelled,
    Checked,
    Failed,
    Finished,
    JobLost,
    JobStatus,
    Preparation,
    Ready,
    Report,
    StopRequests,
    encode_report,
    end_of_jvm,
)
from forebay.pipeline.plan import Plan
from forebay.pipeline.snapshot import Snapshot


def plan_ahead(plan: Plan) -> bool:
    spec = plan.spec
    if not (isinstance(spec.source, KafkaSource) or spec.topics()):
        return False
    # The job meets the same error and reports it.
    with suppress(Exception):
        config = FlinkConfig(log_dir=plan.settings.run / "flink", jars=plan.jars)
        env = flink_environment(config)
        if isinstance(spec.source, KafkaSource):
            stream = spec.source.stream(env, spec)
        else:
            stream = env.from_collection([b""])
        for key, sink in spec.topics().items():
            sink.attach(stream, Written(NAMES[key], spec.name))
        return True
    return False


JVM_GONE_S = 15.0
ARCHIVE_AFTER_S = 15.0


class FlinkClient:
    """Reads a pickled `Preparation` (optional), an `AttemptSpec`, a `Served`, then commands.

    If the JVM dies, it reports that. If the supervisor closes `commands`, it kills itself and its JVM.
    """

    def __init__(self, jvm: Jvm, reports: BinaryIO, commands: BinaryIO, log_dir: Path) -> None:
        self._jvm = jvm
        self._reports = reports
        self._commands = commands
        self._log_dir = log_dir
        self._stop_requests = StopRequests()
        self._go = threading.Event()
        self._connected = self._ending = self._archived = False
        self._environment: dict[str, str] = {}
        self._writing = threading.Lock()

    def serve(self) -> NoReturn:
        threading.Thread(target=self._await_jvms_end, name="jvm-end", daemon=True).start()
        threading.Thread(target=_import_what_builds_jobs, name="imports", daemon=True).start()
        try:
            self._jvm.connect()
            self._connected = True
            finished = self._attempt()
            self._ending = True
            # The job's last output passes through this process.
            self._jvm.end()
            self._report(finished)
        except Cancelled:
            pass
        except JvmGone as error:
            # Its sockets close before it has ended: the thread that waits for the process can report the
            # cause.
            self._jvm.await_end(JVM_GONE_S)
            self._report(AttemptLost(str(error)))
        except JobLost as error:
            self._report(AttemptLost(str(error)))
        except ForebayError as error:
            self._report(Failed(_kind(error), str(error)))
        except BaseException as error:
            traceback.print_exc()
            # Any call to Java fails in its own way when the JVM dies; the waiting thread reports the cause.
            self._jvm.await_end(JVM_GONE_S)
            self._report(Failed("PipelineFailed", f"unexpected error: {error!r}"))
        os._exit(0)

    def _attempt(self) -> Report:
        found: Preparation = pickle.load(self._commands)
        loaded = self._prepare(found)
        order = found if isinstance(found, AttemptSpec) else pickle.load(self._commands)
        attempt = JobAttempt(order, self._report, self._stop_requests)
        attempt.check()
        self._report(Checked())
        served = pickle.load(self._commands)
        threading.Thread(target=self._listen, name="commands", daemon=True).start()
        # Building the job would load them a second time.
        loaded.wait()
        return Finished(attempt.run(served))

    def _prepare(self, preparation: Preparation) -> threading.Event:
        plan = preparation.plan
        self._environment = plan.settings.child_environment()
        runs_tasks = plan.cluster is None and plan.spec.task_managers == 1
        loaded = threading.Event()
        ahead: dict[str, Callable[[], object]] = {"plan-ahead": partial(plan_ahead, plan)}
        if runs_tasks:
            ahead["import-ahead"] = partial(import_ahead, more=imports_of(plan.spec))
        if preparation.file_systems and plan.spec.task_managers == 1:
            ahead["load-ahead"] = partial(load_ahead, preparation, loaded.set)
        else:
            loaded.set()
        for name, target in ahead.items():
            threading.Thread(target=target, name=name, daemon=True).start()
        return loaded

    def _report(self, report: Report) -> None:
        with self._writing:
            self._reports.write(encode_report(report))
        if isinstance(report, JobStatus):
            self._make_archive(report.snapshot)
        if isinstance(report, Ready):
            self._go.wait()
            if self._stop_requests.cancel:
                raise Cancelled

    def _make_archive(self, now: Snapshot) -> None:
        archive = self._jvm.archive
        if archive is None or self._archived or not now.results or now.elapsed_s < ARCHIVE_AFTER_S:
            return
        self._archived = True
        threading.Thread(
            target=archive.make, args=(self._environment,), name="class-archive", daemon=True
        ).start()

    def _listen(self) -> None:
        for command in self._commands:
            self._stop_requests.drain |= command == DRAIN
            self._stop_requests.cancel |= command == CANCEL
            if command in {GO, CANCEL}:
                self._go.set()
        # The supervisor is gone: nobody would record what the job commits.
        os.killpg(0, signal.SIGKILL)

    def _await_jvms_end(self) -> None:
        status = self._jvm.process.wait()
        if not self._ending and (self._connected or status < 0):
            self._report(AttemptLost(f"Flink's JVM {end_of_jvm(status, self._log_dir)}"))
            os._exit(1)


def _import_what_builds_jobs() -> None:
    import_functions()
    import_module(f"{FUNCTIONS}.flink_fn_execution_pb2")


def _kind(error: ForebayError) -> str:
    kinds = (SettingError, SetupError, LaunchError, ResultsLost, PipelineFailed)
    return next((kind.__name__ for kind in kinds if isinstance(error, kind)), PipelineFailed.__name__)
