"""A standalone Flink cluster for one job: task manager JVMs, each with its own Python and interpreter lock.

The job manager runs in this process's JVM. A task manager that dies is restarted.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.java_gateway import get_gateway

from forebay.errors import LaunchError, SettingError
from forebay.flink.environment import FlinkConfig, log_dir, mute_hadoop, secured_options
from forebay.flink.job import java_cause, wrong_option
from forebay.flink.jvm import Jvm, launch_jvm, start_jvm
from forebay.flink.thread_mode import import_ahead
from forebay.ports import free_port

log = logging.getLogger(__name__)

STEADY_S = 60.0
LONGEST_PAUSE_S = 30.0


@contextmanager
def standalone_cluster(config: FlinkConfig, *, imports: Sequence[str] = ()) -> Iterator[None]:
    """Run a cluster with `config.task_managers` during the block; nothing if that is 1.

    Blocks until the job manager answers. Clients need the key in `log_dir`; options are not passed in files
    or arguments. `imports`: modules that tasks need. Raises `SettingError` and `LaunchError`.
    """
    if config.task_managers == 1:
        yield
        return
    options = {
        **_defaults(config),
        **secured_options(config),
        "jobmanager.rpc.address": "localhost",
        "jobmanager.rpc.port": str(free_port()),
    }
    arguments: dict[str, Any] = {
        "heap_mb": config.heap_mb,
        "jars": config.jars,
        "plugins": config.plugins,
        "archive_dir": config.archive_dir,
    }
    launch = partial(launch_jvm, log_dir(config), **arguments)
    with TaskManagers(config.task_managers, launch, options, imports) as managers:
        start_jvm(log_dir(config), **arguments)
        job_manager = _start_job_manager(options)
        managers.begin()
        try:
            yield
        finally:
            with suppress(Py4JError, OSError):
                job_manager.close()


def _defaults(config: FlinkConfig) -> dict[str, str]:
    return {
        "taskmanager.numberOfTaskSlots": str(-(-config.parallelism // config.task_managers)),
        # A missing one is given up with the second failed heartbeat; Flink's default interval
        # is ten times as long.
        "heartbeat.interval": "1 s",
        # Normally computed by Flink's scripts. All are required, but have no effect: the JVM's own
        # limit is `heap_mb`.
        "taskmanager.cpu.cores": "1",
        "taskmanager.memory.task.heap.size": f"{config.heap_mb}m",
        "taskmanager.memory.task.off-heap.size": "0m",
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.framework.off-heap.size": "128m",
        "taskmanager.memory.jvm-metaspace.size": "256m",
        "taskmanager.memory.jvm-overhead.min": "192m",
        "taskmanager.memory.jvm-overhead.max": "192m",
    }


def _start_job_manager(options: Mapping[str, str]) -> Any:
    flink = get_gateway().jvm.org.apache.flink
    try:
        configuration = flink.configuration.Configuration.fromMap(dict(options))
        started = flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint(configuration)
        started.startCluster()
    except Py4JJavaError as error:
        wrong = wrong_option(error)
        if wrong is not None:
            raise SettingError(wrong) from None
        raise LaunchError(f"Flink's job manager did not start: {java_cause(error)}") from None
    return started


class TaskManagers:
    def __init__(
        self,
        count: int,
        launch: Callable[..., Jvm],
        options: Mapping[str, str],
        imports: Sequence[str] = (),
    ) -> None:
        self._launch = launch
        self._options = dict(options)
        self._imports = imports
        self._begun, self._closed = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._running: dict[int, Jvm] = {}
        # Each JVM ends with the thread that starts it.
        self._threads = [
            threading.Thread(target=self._keep, args=(number,), name=f"task-manager-{number}", daemon=True)
            for number in range(1, count + 1)
        ]

    def begin(self) -> None:
        self._begun.set()

    def __enter__(self) -> TaskManagers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._closed.set()
            for jvm in self._running.values():
                jvm.process.kill()
        self._begun.set()
        for thread in self._threads:
            thread.join()

    def _keep(self, number: int) -> None:
        pause_s = 0.0
        for start in itertools.count(1):
            began_s = time.monotonic()
            with self._lock:
                if self._closed.is_set():
                    return
                jvm = self._running[number] = self._launch(suffix=f"task-manager-{number}-{start}")
            self._serve(jvm)
            jvm.end()
            if self._closed.is_set():
                return
            log.warning(
                "task manager %d ended with status %s: it is started again", number, jvm.process.returncode
            )
            steady = time.monotonic() - began_s >= STEADY_S
            self._closed.wait(0.0 if steady else pause_s)
            pause_s = 0.0 if steady else min(LONGEST_PAUSE_S, 2 * pause_s or 1.0)

    def _serve(self, jvm: Jvm) -> None:
        # Why it ended is in its log.
        with suppress(LaunchError, Py4JError, OSError):
            java = jvm.open_gateway().jvm
            mute_hadoop(java)
            args = (java, self._imports)
            threading.Thread(target=import_ahead, args=args, name="import-ahead", daemon=True).start()
            self._begun.wait()
            flink = java.org.apache.flink
            configuration = flink.configuration.Configuration.fromMap(self._options)
            flink.runtime.taskexecutor.TaskManagerRunner.runTaskManagerProcessSecurely(configuration)
