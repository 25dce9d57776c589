"""The replicas of this machine, in one JSON file that several commands read and write."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from forebay.files import locked, read_stamp, write_stamp
from forebay.processes import (
    birth_s,
    descendants,
    is_same,
    kill,
    session_members,
    terminate,
    wait_gone,
)

VERSION = 1


class LocalReplica(BaseModel):
    """One local replica. `pid` is its supervisor, which leads the session of all its processes.

    `born_s`, seconds from boot, distinguishes it from a later process with the same id. `kept`: it outlives
    the command that started it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    url: str
    port: int
    model: str
    dtype: str = ""
    dtype_reason: str = ""
    cores: tuple[int, ...] = ()
    log: Path
    pid: int
    born_s: float
    owner_pid: int
    kept: bool = False
    members: tuple[tuple[int, float], ...] = ()

    @property
    def alive(self) -> bool:
        return is_same(self.pid, self.born_s)

    def processes(self) -> set[psutil.Process]:
        if self.alive:
            return session_members(self.pid) | descendants(self.pid)
        known = {psutil.Process(pid) for pid, born_s in self.members if is_same(pid, born_s)}
        kin = session_members(self.pid)
        # If one member still runs in the session, the session's id was not reused.
        return known | kin if known & kin else known

    def with_members(self) -> LocalReplica:
        seen = ((process.pid, birth_s(process.pid)) for process in self.processes())
        return self.model_copy(
            update={"members": tuple((pid, born) for pid, born in seen if born is not None)}
        )


class ReplicaRegistry:
    """Every write is a locked read-modify-write and replaces the file atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[LocalReplica]:
        """Registered replicas, without those that died with their owner. Empty if there is no file of this
        version.
        """
        content = read_stamp(self.path)
        listed = content.get("replicas")
        if content.get("version") != VERSION or not isinstance(listed, list):
            return []
        replicas = []
        for entry in listed:
            try:
                replicas.append(LocalReplica.model_validate(entry))
            except ValidationError:
                continue
        return [replica for replica in replicas if replica.kept or replica.alive]

    def kept(self, replica_id: str) -> bool:
        return any(replica.id == replica_id and replica.kept for replica in self.read())

    @contextmanager
    def changing(self) -> Iterator[dict[str, LocalReplica]]:
        with locked(self.path.with_suffix(".lock")):
            replicas = {replica.id: replica for replica in self.read()}
            yield replicas
            listed = [replica.model_dump(mode="json") for replica in replicas.values()]
            write_stamp(self.path, {"version": VERSION, "replicas": listed})


GRACE_S = 10.0
# A supervisor kills what outlives the grace time, then needs a moment to exit.
SUPERVISOR_EXTRA_S = 5.0


def end_processes(replicas: Sequence[LocalReplica], grace_s: float = GRACE_S) -> None:
    """Terminate all replicas, wait, then kill the rest; blocks until all have ended."""
    waited: set[psutil.Process] = set()
    for replica in replicas:
        processes = replica.processes()
        supervisor = {process for process in processes if process.pid == replica.pid}
        terminate(supervisor or processes)
        waited |= processes
    left = wait_gone(waited, grace_s + SUPERVISOR_EXTRA_S)
    for replica in replicas:
        left |= replica.processes()
    kill(left)


def end_kept(
    registry: ReplicaRegistry, grace_s: float = GRACE_S, *, only: Collection[str] | None = None
) -> list[LocalReplica]:
    """End and return the kept replicas, or `only` those with these URLs, and orphans of dead ones."""
    kept = [replica for replica in registry.read() if replica.kept and (only is None or replica.url in only)]
    end_processes(kept, grace_s)
    with registry.changing() as registered:
        for replica in kept:
            registered.pop(replica.id, None)
    return kept
