"""Start local replicas, and end them with this process or on request."""

from __future__ import annotations

import http.client
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import overload

from forebay.engine.launch.dtype import NumberType
from forebay.engine.launch.progress import Progress, Silent, tail
from forebay.engine.launch.registry import GRACE_S, LocalReplica, ReplicaRegistry, end_processes
from forebay.engine.launch.spec import LOOPBACK, EngineLaunch
from forebay.engine.launch.supervisor import SupervisorArgs
from forebay.errors import LaunchError
from forebay.ports import free_ports_from
from forebay.processes import birth_s, kill, module_command
from forebay.settings import environment_without

PORT_BASE = 8100
START_TIMEOUT_S = 600.0
POLL_S = 0.25
HEALTH_TIMEOUT_S = 2.0
USUALLY = "about half a minute, most of it to load vLLM"
KEPT_LOGS = 50

LaunchFor = Callable[[int, tuple[int, ...]], EngineLaunch]


class Replicas(Sequence[str]):
    """Local replicas, as the sequence of their URLs. They end with `close`, and with this process unless
    `keep` was called. Not thread-safe.
    """

    def __init__(
        self,
        registry: ReplicaRegistry,
        launch: LaunchFor,
        *,
        model: str,
        dtype: NumberType | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.model = model
        self.dtype = dtype
        self._registry = registry
        self._logs = registry.path.parent / "logs"
        self._launch = launch
        self._grace_s = grace_s
        # Supervisors wait for the end of this pipe: its only writer is this process.
        self._alive_read, self._alive_write = os.pipe()
        self._replicas: list[LocalReplica] = []
        self._supervisors: dict[str, subprocess.Popen[bytes]] = {}
        self._kept = self._closed = False

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self.urls[index]

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(replica.url for replica in self._replicas)

    @property
    def replicas(self) -> tuple[LocalReplica, ...]:
        return tuple(self._replicas)

    def start(
        self,
        shares: Sequence[tuple[int, ...]],
        *,
        port_base: int = PORT_BASE,
        timeout_s: float = START_TIMEOUT_S,
        progress: Progress | None = None,
    ) -> None:
        """Start one replica for each share of cores; blocks until all are healthy. Call once.

        Raises `LaunchError`, with the end of the log, if one dies first or takes longer than `timeout_s`.
        """
        with self._registry.changing() as registered:
            taken = {replica.port for replica in registered.values()}
            for share, port in zip(shares, free_ports_from(port_base, len(shares), taken), strict=True):
                replica = self._spawn(port, share)
                self._replicas.append(replica)
                registered[replica.id] = replica
        self._await_health(self._replicas, timeout_s, progress or Silent())

    def add(self, cores: tuple[int, ...], *, port_base: int = PORT_BASE) -> LocalReplica:
        """Start one more; returns long before it is healthy. Raises `LaunchError` if its process cannot be
        started.
        """
        replica = None
        try:
            with self._registry.changing() as registered:
                taken = {replica.port for replica in registered.values()}
                replica = self._spawn(next(iter(free_ports_from(port_base, 1, taken))), cores)
                self._replicas.append(replica)
                registered[replica.id] = replica
        except OSError as error:
            if replica is not None:
                self.end(replica)
            raise LaunchError(f"a replica cannot be started: {error}") from None
        return replica

    def ended(self, replica: LocalReplica) -> int | None:
        supervisor = self._supervisors.get(replica.id)
        return 0 if supervisor is None else supervisor.poll()

    def end(self, replica: LocalReplica) -> None:
        """Stop one; returns at once. It is killed if it has not ended after `grace_s`."""
        supervisor = self._supervisors.get(replica.id)
        if supervisor is not None and supervisor.poll() is None:
            supervisor.terminate()

    def drop(self, replica: LocalReplica) -> None:
        kill(replica.processes())
        self._reap(replica)
        self._replicas.remove(replica)
        with self._registry.changing() as registered:
            registered.pop(replica.id, None)

    def kill(self, index: int) -> None:
        replica = self._replicas[index]
        kill(replica.processes())
        self._reap(replica)

    def restart(self, index: int, *, timeout_s: float = START_TIMEOUT_S) -> None:
        old = self._replicas[index]
        end_processes([old], self._grace_s)
        self._reap(old)
        with self._registry.changing() as registered:
            registered.pop(old.id, None)
            replica = self._spawn(old.port, old.cores)
            self._replicas[index] = registered[replica.id] = replica
        self._await_health([replica], timeout_s, Silent())

    def keep(self) -> None:
        """Hand over all replicas, or none: they outlive this process, until `forebay engine down`."""
        kept = [replica.with_members().model_copy(update={"kept": True}) for replica in self._replicas]
        with self._registry.changing() as registered:
            registered.update({replica.id: replica for replica in kept})
        self._replicas = kept
        self._kept = True

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if not self._kept:
                end_processes(self._replicas, self._grace_s)
                with self._registry.changing() as registered:
                    for replica in self._replicas:
                        registered.pop(replica.id, None)
                        self._reap(replica)
        finally:
            os.close(self._alive_write)
            os.close(self._alive_read)

    def __enter__(self) -> Replicas:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _spawn(self, port: int, cores: tuple[int, ...]) -> LocalReplica:
        launch = self._launch(port, cores)
        replica_id = f"{port}-{secrets.token_hex(4)}"
        log = self._new_log(replica_id)
        order = SupervisorArgs(
            replica_id=replica_id,
            registry=str(self._registry.path),
            owner_pid=os.getpid(),
            command=launch.command,
            environment=dict(launch.environment),
            cores=launch.cores,
            grace_s=self._grace_s,
        )
        with log.open("ab") as file:
            supervisor = subprocess.Popen(
                module_command("forebay.engine.launch.supervisor", order.encode()),
                stdin=self._alive_read,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment_without(launch.withheld),
                start_new_session=True,
            )
        self._supervisors[replica_id] = supervisor
        return LocalReplica(
            id=replica_id,
            url=f"http://{LOOPBACK}:{port}",
            port=port,
            model=self.model,
            dtype="" if self.dtype is None else self.dtype.name,
            dtype_reason="" if self.dtype is None else self.dtype.reason,
            cores=cores,
            log=log,
            pid=supervisor.pid,
            born_s=birth_s(supervisor.pid) or 0.0,
            owner_pid=os.getpid(),
        )

    def _new_log(self, replica_id: str) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        old = sorted(self._logs.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for path in old[: max(0, len(old) - KEPT_LOGS + 1)]:
            path.unlink(missing_ok=True)
        return self._logs / f"{replica_id}.log"

    def _await_health(self, replicas: Iterable[LocalReplica], timeout_s: float, progress: Progress) -> None:
        waiting = list(replicas)
        deadline = time.monotonic() + timeout_s
        with progress.step(f"Starting {len(waiting)} replica(s) of {self.model} ({USUALLY})") as detail:
            while waiting:
                for replica in waiting:
                    # Checked first: another server on the port may be healthy while ours could not bind it.
                    status = self._supervisors[replica.id].poll()
                    if status is not None:
                        raise LaunchError(
                            f"the replica on port {replica.port} ended with status {status} before it was "
                            f"healthy; the end of {replica.log}:\n{tail(replica.log)}"
                        )
                if time.monotonic() > deadline:
                    raise LaunchError(
                        f"the replica on port {waiting[0].port} was not healthy within {timeout_s:g} s; "
                        f"the end of {waiting[0].log}:\n{tail(waiting[0].log)}"
                    )
                waiting = [replica for replica in waiting if not is_healthy(replica)]
                if waiting:
                    detail(tail(waiting[0].log, 1))
                    time.sleep(POLL_S)

    def _reap(self, replica: LocalReplica) -> None:
        supervisor = self._supervisors.pop(replica.id, None)
        if supervisor is not None:
            supervisor.wait(self._grace_s)


def is_healthy(replica: LocalReplica) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, replica.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
