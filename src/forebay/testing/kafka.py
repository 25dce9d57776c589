"""A single-node Kafka for tests and demos, from an unpacked distribution."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from forebay.errors import LaunchError, SettingError
from forebay.flink.java import java_home
from forebay.ports import free_ports
from forebay.processes import parent_death_signal
from forebay.testing.waiting import wait_until

CLUSTER_ID = "Rm9yZWJheS1sb2NhbC1ub2Rl"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
HEAP = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC")

FENCE_TIMEOUT_S = 60.0
# Kafka writes this file on an orderly shutdown.
CLEAN_END = ".kafka_cleanshutdown"
# Log message of a controller that fences a dead broker, and the log configuration that enables it.
FENCING = "Fencing broker 1 "
FENCING_LOG = """\
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5p %c{1} %m%n
logger.controller.name = org.apache.kafka.controller.ReplicationControlManager
logger.controller.level = INFO
"""


class LocalKafka:
    """One node, broker and controller, that keeps its data in `folder` across kills. `home`: an
    unpacked distribution. Topics are not created automatically. `listeners`: protocols besides
    plaintext."""

    def __init__(
        self,
        home: Path,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        listeners: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._jars = _jars(home)
        self._folder = folder
        self._settings = dict(settings or {})
        self._environment = environment
        self.port, self._controller, *others = free_ports(2 + len(listeners))
        self._listeners = dict(zip(listeners, others, strict=True))
        self._process: subprocess.Popen[bytes] | None = None
        self._data = folder / "data"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def bootstrap_of(self, listener: str) -> str:
        return f"127.0.0.1:{self._listeners[listener]}"

    @property
    def log(self) -> Path:
        return self._folder / "kafka.log"

    @property
    def controller_log(self) -> Path:
        return self._folder / "controller.log"

    def start(self) -> None:
        """Start the node and wait until it accepts connections; `LaunchError` if it does not. After
        a crash, the dead broker is fenced first."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if (self._data / "meta.properties").is_file() and not (self._data / CLEAN_END).is_file():
            self._fence()
        properties = self._write("server.properties", self._properties())
        with self.log.open("ab") as log:
            if not (self._data / "meta.properties").is_file():
                words = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
                done = subprocess.run(
                    self._java(*words), stdout=log, stderr=log, check=False, env=self._environment
                )
                if done.returncode:
                    raise LaunchError(f"Kafka could not make its folder; see {self.log}")
            self._process = _popen(self._java("kafka.Kafka", str(properties)), log, self._environment)
        self._await_start()

    def kill(self) -> None:
        """Crash the node (SIGKILL)."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Suspend the node (SIGSTOP): connections stay open, nothing answers.

        Blocks until its last thread has stopped, which takes a while on a busy machine.
        """
        self._signal(signal.SIGSTOP)
        if self._process is not None:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> None:
        """Resume a paused node (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def _signal(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)

    def _fence(self) -> None:
        logging = self._folder / "controller-log4j2.properties"
        logging.write_text(FENCING_LOG)
        properties = self._write("controller.properties", self._controller_properties())
        with self.controller_log.open("wb") as log:
            process = _popen(
                self._java(f"-Dlog4j2.configurationFile={logging}", "kafka.Kafka", str(properties)),
                log,
                self._environment,
            )

        def await_(there: Callable[[], bool]) -> None:
            wait_until(lambda: process.poll() is not None or there(), FENCE_TIMEOUT_S)

        try:
            with suppress(AssertionError):
                await_(lambda: FENCING in self.controller_log.read_text())
                # The message is logged before the record is written, and the next write may be an earlier
                # record.
                for _ in range(2):
                    await_(partial(self._metadata_longer_than, self._metadata_bytes()))
        finally:
            _end(process, signal.SIGTERM)

    def _metadata_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._data.glob("__cluster_metadata-0/*.log"))

    def _metadata_longer_than(self, size: int) -> bool:
        return self._metadata_bytes() > size

    def _await_start(self) -> None:
        process = self._process
        assert process is not None
        try:
            wait_until(lambda: process.poll() is not None or _answers(self.port), START_TIMEOUT_S)
        except AssertionError:
            self._end(signal.SIGKILL)
        if self._process is None or process.poll() is not None:
            raise LaunchError(f"Kafka did not start within {START_TIMEOUT_S:.0f} s; see {self.log}")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process, how)

    def _write(self, name: str, properties: Mapping[str, str]) -> Path:
        path = self._folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return path

    def _java(self, *words: str) -> list[str]:
        return [str(java_home() / "bin" / "java"), *HEAP, "-cp", self._jars, *words]

    def _controller_properties(self) -> dict[str, str]:
        return {
            **self._quorum("controller"),
            "listeners": f"CONTROLLER://127.0.0.1:{self._controller}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "1000",
        }

    def _quorum(self, roles: str) -> dict[str, str]:
        return {
            "process.roles": roles,
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._data),
        }

    def _properties(self) -> dict[str, str]:
        more = "".join(f",{name}://{self.bootstrap_of(name)}" for name in self._listeners)
        return {
            **self._quorum("broker,controller"),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller}{more}",
            "listener.security.protocol.map": ",".join(
                ("CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in ("PLAINTEXT", *self._listeners)))
            ),
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # Otherwise, records with old timestamps are deleted half a minute after the start.
            "log.retention.ms": "-1",
            **{
                f"{name}.{what}": value
                for name in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
                for what, value in (("replication.factor", "1"), ("num.partitions", "4"), ("min.isr", "1"))
                if (name, what) != ("offsets.topic", "min.isr")
            },
            **self._settings,
        }


@contextmanager
def local_kafka(
    home: Path,
    folder: Path,
    settings: Mapping[str, str] | None = None,
    listeners: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[LocalKafka]:
    """A running node; its data stays in `folder`. On Linux it also ends with this process, if
    started from the main thread."""
    node = LocalKafka(home, folder, settings, listeners, environment)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def _jars(home: Path) -> str:
    for folder in (home / "libs", home / "broker", home):
        if any(folder.glob("kafka_*.jar")):
            # The folder itself contains the log configuration.
            return f"{folder}{os.pathsep}{folder}/*"
    raise SettingError(f"{home} is not a Kafka distribution: no kafka_*.jar in it or in its folder libs")


def _popen(
    command: Sequence[str], log: IO[bytes], environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    on_main_thread = threading.current_thread() is threading.main_thread()
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,
        preexec_fn=parent_death_signal(signal.SIGKILL) if on_main_thread else None,  # noqa: PLW1509
    )


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(how)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False
