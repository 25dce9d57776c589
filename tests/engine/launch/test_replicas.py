from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from forebay.engine.launch import end_kept, is_healthy
from forebay.engine.launch.registry import LocalReplica
from forebay.engine.launch.spec import AS_MAIN, usable_cores
from forebay.errors import LaunchError
from forebay.ports import port_is_free
from forebay.processes import birth_s
from forebay.testing.waiting import wait_until

from .conftest import StandIn, command_line, eventually

pytestmark = pytest.mark.heavy


def test_replicas_are_healthy_inside_the_block_and_gone_after_it(stand_in: StandIn) -> None:
    cores = usable_cores()
    with stand_in.replicas() as replicas:
        replicas.start([(cores[0],), (cores[-1],)], port_base=stand_in.port_base)
        assert list(replicas) == [replica.url for replica in replicas.replicas]
        assert len(set(replicas)) == 2
        eventually(lambda: all(is_healthy(replica) for replica in stand_in.registry.read()))
        for replica, core in zip(replicas.replicas, (cores[0], cores[-1]), strict=True):
            assert {tuple(process.cpu_affinity()) for process in replica.processes()} == {(core,)}
        assert len(stand_in.children()) == 6
    assert stand_in.processes() == []
    assert stand_in.registry.read() == []
    assert all(port_is_free(replica.port) for replica in replicas.replicas)


def test_dead_server_shows_the_end_of_its_log(stand_in: StandIn) -> None:
    with (
        pytest.raises(LaunchError, match=r"status 1 before[\s\S]*no such model: nonsense"),
        stand_in.replicas("dies") as it,
    ):
        it.start([()], port_base=stand_in.port_base)
    assert stand_in.registry.read() == []


def test_slow_start_ends_all_replicas(stand_in: StandIn) -> None:
    with (
        pytest.raises(LaunchError, match="not healthy within 0 s"),
        stand_in.replicas("never healthy") as replicas,
    ):
        replicas.start([()], port_base=stand_in.port_base, timeout_s=0)
    assert stand_in.processes() == []


def test_foreign_server_on_the_port_is_skipped(stand_in: StandIn) -> None:
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", stand_in.port_base))
        stranger.listen()
        with stand_in.replicas() as replicas:
            replicas.start([()], port_base=stand_in.port_base)
            assert replicas.replicas[0].port == stand_in.port_base + 1


@pytest.mark.parametrize("behaviour", ["never healthy", "healthy"])
def test_no_process_stays_when_the_owner_is_killed(stand_in: StandIn, behaviour: str) -> None:
    owner = stand_in.owner(behaviour, "wait")
    assert owner.stdout is not None
    if behaviour == "healthy":
        assert owner.stdout.readline() == b"started\n"
    eventually(lambda: stand_in.ready() == 2)
    assert len(stand_in.children()) == 6
    owner.kill()
    owner.wait()
    eventually(lambda: stand_in.processes() == [])
    owner.stdout.close()


def test_no_process_stays_if_a_fork_holds_the_dead_owners_pipe(stand_in: StandIn) -> None:
    owner = stand_in.owner("healthy", "leave an heir")
    assert owner.wait() == -signal.SIGKILL
    heir = "leave an heir"
    eventually(lambda: not [p for p in stand_in.processes() if heir not in command_line(p)])
    owner.communicate()
    eventually(lambda: stand_in.processes() == [])


def test_kept_replicas_outlive_their_owner_until_stopped(stand_in: StandIn) -> None:
    owner = stand_in.owner("healthy", "keep")
    owner.communicate()
    assert owner.returncode == 0
    kept = stand_in.registry.read()
    assert [replica.kept for replica in kept] == [True, True]
    # Long enough for a supervisor to have seen its owner's end: it looks five times a second.
    for replica in kept:
        eventually(lambda replica=replica: psutil.Process(replica.pid).ppid() != owner.pid)
    eventually(lambda: all(is_healthy(replica) for replica in kept))
    assert all(replica.alive for replica in kept)
    assert [replica.id for replica in end_kept(stand_in.registry, 1.0)] == [replica.id for replica in kept]
    assert stand_in.processes() == []
    assert stand_in.registry.read() == []


def test_orphans_of_a_killed_supervisor_are_ended(stand_in: StandIn) -> None:
    owner = stand_in.owner("healthy", "keep")
    owner.communicate()
    for replica in stand_in.registry.read():
        psutil.Process(replica.pid).kill()
    eventually(lambda: not any(replica.alive for replica in stand_in.registry.read()))
    assert stand_in.children(), "the children that are deaf to SIGTERM live on"
    end_kept(stand_in.registry, 1.0)
    assert stand_in.processes() == []


def test_foreign_process_with_a_reused_pid_is_left_alone(stand_in: StandIn) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as stranger:
        born_s = birth_s(stranger.pid)
        assert born_s is not None
        entry = LocalReplica(
            id="old", url="http://127.0.0.1:1", port=1, model="m", log=stand_in.directory, owner_pid=1,
            pid=stranger.pid, born_s=born_s - 100, members=((stranger.pid, born_s - 99),), kept=True,
        )  # fmt: skip
        with stand_in.registry.changing() as registered:
            registered[entry.id] = entry
        assert not entry.alive
        assert entry.processes() == set()
        assert end_kept(stand_in.registry, 0.1) == [entry]
        assert stranger.poll() is None
        assert entry.model_copy(update={"born_s": born_s}).alive


def test_killed_replica_restarts_on_its_port(stand_in: StandIn) -> None:
    with stand_in.replicas() as replicas:
        replicas.start([(), ()], port_base=stand_in.port_base)
        before = replicas.urls
        replicas.kill(1)
        assert not is_healthy(replicas.replicas[1])
        assert replicas.replicas[1].processes() == set()
        eventually(lambda: is_healthy(replicas.replicas[0]))
        replicas.restart(1)
        assert replicas.urls == before
        eventually(lambda: is_healthy(replicas.replicas[1]))


def test_concurrent_owners_get_different_ports(stand_in: StandIn) -> None:
    with stand_in.replicas() as one, stand_in.replicas() as other:
        one.start([()], port_base=stand_in.port_base)
        other.start([()], port_base=stand_in.port_base)
        assert one[0] != other[0]
        assert {replica.url for replica in stand_in.registry.read()} == {one[0], other[0]}


def test_replicas_are_added_and_ended_one_by_one_without_waiting(stand_in: StandIn) -> None:
    with stand_in.replicas() as replicas:
        one = replicas.add((), port_base=stand_in.port_base)
        other = replicas.add((), port_base=stand_in.port_base)
        assert one.port != other.port
        assert replicas.ended(one) is None
        eventually(lambda: is_healthy(one) and is_healthy(other))
        replicas.end(one)
        eventually(lambda: replicas.ended(one) is not None)
        replicas.drop(one)
        assert one.processes() == set()
        assert [replica.id for replica in stand_in.registry.read()] == [other.id]
        assert replicas.urls == (other.url,)
        assert is_healthy(other)
    assert stand_in.processes() == []


def test_replica_that_dies_at_its_start_is_reported_with_its_status(stand_in: StandIn) -> None:
    with stand_in.replicas("dies") as replicas:
        one = replicas.add((), port_base=stand_in.port_base)
        eventually(lambda: replicas.ended(one) == 1)
        replicas.drop(one)
        assert stand_in.registry.read() == []


SERVER = """
import multiprocessing
import os
import sys
import time

if __name__ == "__main__":
    forked = os.fork()
    if not forked:
        time.sleep(600)
    spawned = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    spawned.start()
    print(*sys.argv[1:], forked, spawned.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux's kernel")
def test_child_processes_end_with_their_killed_server(tmp_path: Path) -> None:
    (tmp_path / "a_server.py").write_text(SERVER)
    command = [sys.executable, str(AS_MAIN), "a_server", "--seed", "7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(tmp_path)}) as server:
        try:
            assert server.stdout is not None
            *options, forked, spawned = server.stdout.readline().split()
            children = [psutil.Process(int(number)) for number in (forked, spawned)]
        finally:
            server.kill()
    assert options == [b"--seed", b"7"]
    wait_until(lambda: not any(map(runs, children)), 10)


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
