"""Runs with state and results in an object store."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.object_store import StoreLink
from benchmarks.run_process import Part, PipelineProcess
from tests.harness.homes import new_home

from forebay.clients.s3.client import S3Client
from forebay.clients.s3.location import S3Path, uri_of
from forebay.clients.s3.lock import held_lock
from forebay.connectors.files.sink import committed_parts, read_jsonl_sink
from forebay.connectors.jars import S3
from forebay.flink.checkpoints import drain_folder
from forebay.flink.rest import FlinkRest, tls_keys
from forebay.pipeline.s3_state_store import S3Store
from forebay.ports import free_port
from forebay.settings import AWS_SECRETS
from forebay.testing.answers import echo
from forebay.testing.cluster import local_cluster
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until

pytestmark = [pytest.mark.flink, pytest.mark.xdist_group("object-store")]
EVENTS = 1200


@pytest.fixture
def engine() -> Iterator[str]:
    with ReplicaProcess(ReplicaScript(delay=Fixed(0.05))) as replica:
        yield replica.url


class Machines:
    """Starts of one pipeline, each in a new empty folder."""

    def __init__(self, folder: Path, store: S3Path, plugin: Path, engine: str) -> None:
        self.folder = folder
        self.store = store
        self._plugin = plugin
        self._engine = engine
        self._count = 0
        events = (orjson.dumps({"n": number}) for number in range(EVENTS))
        (folder / "events.jsonl").write_bytes(b"\n".join(events))

    def start(self, variables: Mapping[str, str], *options: str, **changes: Any) -> PipelineProcess:
        self._count += 1
        work = self.folder / f"machine-{self._count}"
        connectors = new_home(work / "home") / "connectors"
        jar = S3.folder(connectors) / S3.name
        jar.parent.mkdir(parents=True)
        os.link(self._plugin, jar) if _one_disk(self._plugin, work) else jar.symlink_to(self._plugin)
        document = {
            "name": "moved",
            "source": {"type": "jsonl", "path": str(self.folder / "events.jsonl")},
            "prompt": "Event {{ n }}",
            "sink": {"type": "jsonl", "path": f"{self.store}/results"},
            "checkpoint": {"dir": f"{self.store}/state", "interval_s": 0.5},
            "capacity": 16,
            **changes,
        }
        (work / "pipeline.yaml").write_bytes(orjson.dumps(document))
        process = PipelineProcess(work / "pipeline.yaml", self._engine, work)
        process.environment = variables
        process.options = options
        process.start()
        return process

    def results(self) -> list[Any]:
        return [orjson.loads(line) for line in read_jsonl_sink(self.store / "results")]

    def hide_processes(self) -> None:
        """Forget the last run's JVM, which the next run would end: it counts as on another machine."""
        client, key = S3Client(self.store.bucket), f"{self.store.key}/state/run.json"
        found = client.get(key)
        assert found is not None
        client.put(key, orjson.dumps({**orjson.loads(found.content), "jvm": None}), replacing=found.etag)

    def completed(self) -> bool:
        """Whether the record has a completed checkpoint of the last job."""
        state = S3Store(self.store / "state").read()
        return state is not None and state.completed is not None

    def job(self) -> str | None:
        state = S3Store(self.store / "state").read()
        return None if state is None else state.job


def _one_disk(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


@pytest.fixture
def machines(tmp_path: Path, store: S3Path, s3_plugin: Path, engine: str) -> Machines:
    return Machines(tmp_path, store, s3_plugin, engine)


def exact(machines: Machines) -> None:
    found = machines.results()
    assert Counter(each["fields"]["n"] for each in found) == Counter(range(EVENTS))
    assert all(each["answer"] == echo(f"Event {each['fields']['n']}") for each in found)


def finish(process: PipelineProcess) -> None:
    wait_until(lambda: process.status() is not None, describe=process.output)
    assert process.status() == 0, process.output()


@pytest.mark.slow
def test_lost_machine_loses_nothing(machines: Machines, store_server: Any) -> None:
    """All processes are killed, and the run is resumed in an empty folder. No key leaks."""
    process = machines.start(store_server.variables)

    def some() -> bool:
        assert process.status() is None, process.output()
        return len(committed_parts(machines.store / "results")) > 1

    wait_until(some, describe=process.output)
    process.kill()
    process = machines.start(store_server.variables)
    finish(process)
    exact(machines)
    logs = (machines.folder / "machine-2" / "home" / "run" / "flink").glob("flink-forebay-*.log")
    message = b"".join(log.read_bytes() for log in logs)
    # Data loaded ahead is not loaded again by the run.
    assert (
        message.count(b"Registering filesystem factory org.apache.flink.fs.s3hadoop.S3FileSystemFactory") < 2
    )
    client = S3Client(machines.store.bucket)
    last = machines.job()
    assert last not in S3Store(machines.store / "state").jobs(), "what the job that finished left is deleted"
    secrets = [store_server.variables[name] for name in AWS_SECRETS]
    places = [path for path in machines.folder.rglob("*") if path.is_file() and path.suffix != ".jar"]
    texts = [path.read_bytes() for path in places]
    for entry in client.entries(machines.store.key):
        found = client.get(f"{machines.store.key}/{entry.name}")
        texts.append(b"" if found is None else found.content)
    assert len(texts) > 20
    assert not [secret for secret in secrets if any(secret.encode() in text for text in texts)]


@pytest.mark.slow
def test_run_killed_at_its_end_repeats_no_event(machines: Machines, store_server: Any) -> None:
    store = S3Store(machines.store / "state")
    process = machines.start(store_server.variables)

    def marked() -> bool:
        assert process.status() is None, process.output()
        job = machines.job()
        return job is not None and store.has_finished(job)

    wait_until(marked, describe=process.output)
    process.kill()
    process = machines.start(store_server.variables)
    wait_until(lambda: process.status() is not None, describe=process.output)
    exact(machines)


STANDSTILLS: dict[str, tuple[Part, ...]] = {
    "command": (),
    "command and guard": ("flink",),
    "machine": ("jvm", "flink"),
}


@pytest.mark.parametrize("standstill", [pytest.param(each, marks=pytest.mark.long) for each in STANDSTILLS])
def test_suspended_run_commits_nothing_more(machines: Machines, store_server: Any, standstill: str) -> None:
    """Another machine takes over and finishes. If the guard is suspended too, only the fences protect the
    results.
    """
    # Slow: it is not to finish before it is taken over.
    first = machines.start(store_server.variables, capacity=2)
    wait_until(lambda: len(committed_parts(machines.store / "results")) > 1, describe=first.output)
    first.pause(*STANDSTILLS[standstill])
    machines.hide_processes()
    finish(machines.start(store_server.variables))
    exact(machines)
    first.unpause(*STANDSTILLS[standstill])
    wait_until(lambda: first.status() is not None, describe=first.output)
    assert first.status() == 1
    assert "has taken over" in first.output()
    exact(machines)


@pytest.mark.long
def test_drain_after_a_takeover_commits_nothing(machines: Machines, store_server: Any) -> None:
    """Its Flink runs without a guard and is drained while another run is active."""
    first = machines.start(store_server.variables, capacity=2)
    wait_until(lambda: len(committed_parts(machines.store / "results")) > 1, describe=first.output)
    job, store = machines.job(), S3Store(machines.store / "state")
    state = store.read()
    assert job is not None
    assert state is not None
    assert state.rest_port is not None
    first.pause("flink")
    with store.lock("moved"):
        store.fence(job, 0)
        keys = tls_keys(machines.folder / "machine-1" / "home" / "run" / "flink" / "keys")
        rest = FlinkRest(f"https://localhost:{state.rest_port}", keys)
        folder = uri_of(machines.store / "state" / job / drain_folder(0))
        payload = {"drain": True, "targetDirectory": folder, "formatType": "NATIVE"}
        drain = rest.json(f"/jobs/{job}/stop", "POST", payload)["request-id"]

        def failed() -> bool:
            return "failure-cause" in (rest.json(f"/jobs/{job}/savepoints/{drain}").get("operation") or {})

        wait_until(failed)
        assert not [each for each in store.checkpoints(job) if each.path.name.startswith("savepoint")]
    finish(machines.start(store_server.variables))
    exact(machines)
    first.kill()
    exact(machines)


@pytest.mark.long
def test_run_after_a_failed_takeover_fences(machines: Machines, store_server: Any) -> None:
    first = machines.start(store_server.variables, capacity=2)
    wait_until(lambda: len(committed_parts(machines.store / "results")) > 1, describe=first.output)
    first.pause("flink")
    machines.hide_processes()
    nowhere = machines.start(store_server.variables, "--cluster", f"127.0.0.1:{free_port()}")
    wait_until(lambda: nowhere.status() is not None, describe=nowhere.output)
    assert nowhere.status() != 0
    third = machines.start(store_server.variables, capacity=2)
    job = machines.job()
    wait_until(lambda: machines.job() != job and machines.completed(), describe=third.output)
    # It resumes from a checkpoint of its own, and the fences stay.
    third.kill_part("jvm")
    finish(third)
    exact(machines)
    first.unpause("flink")
    wait_until(lambda: first.status() is not None, describe=first.output)
    assert first.status() == 1
    exact(machines)


@pytest.mark.long
def test_disconnected_run_notices_the_takeover(machines: Machines, store_server: Any) -> None:
    """The first run loses its connection to the store; the second reaches it, takes over, and finishes."""
    with StoreLink(store_server.port) as link:
        first = machines.start({**store_server.variables, "AWS_ENDPOINT_URL": link.url})
        wait_until(lambda: len(committed_parts(machines.store / "results")) > 1, describe=first.output)
        link.stall()
        finish(machines.start(store_server.variables))
        exact(machines)
        # Its late upload arrives now, and it continues.
        link.restore()
        wait_until(lambda: first.status() is not None, describe=first.output)
    assert first.status() == 1
    # It finds so by the lock or by the record, whichever it writes first. Where the second takes long, as on
    # a busy machine, the first has given the store up before.
    assert "has taken over" in first.output() or "did not answer" in first.output()
    exact(machines)


@pytest.mark.long
def test_late_upload_after_a_takeover_commits_nothing(machines: Machines, store_server: Any) -> None:
    """Flink saw that the name was free; its upload begins after the takeover, which therefore did not abort
    it.
    """

    def begins_upload(piece: bytes) -> bool:
        return piece.startswith(b"POST ") and b"/_metadata?uploads" in piece.split(b"\r\n", 1)[0]

    with StoreLink(store_server.port) as link:
        first = machines.start({**store_server.variables, "AWS_ENDPOINT_URL": link.url}, capacity=2)
        wait_until(lambda: len(committed_parts(machines.store / "results")) > 1, describe=first.output)
        link.stall_at(begins_upload)
        wait_until(link.trapped.is_set, describe=first.output)
        finish(machines.start(store_server.variables))
        exact(machines)
        link.restore()
        wait_until(lambda: first.status() is not None, describe=first.output)
    assert first.status() == 1
    exact(machines)


@pytest.mark.long
def test_expired_keys_delay_results_until_renewal(machines: Machines, store_server: Any) -> None:
    """With task managers, each of which reads and writes on its own."""
    run = machines.start(store_server.variables, parallelism=2, task_managers=2)
    try:
        wait_until(lambda: len(committed_parts(machines.store / "results")) > 1, describe=run.output)
        store_server.link.refuse(400, "ExpiredToken")
        words = f"bucket {machines.store.bucket} at {store_server.link.url}: the keys have expired"
        wait_until(lambda: words in run.output(), describe=run.output)
        assert run.status() is None
        store_server.link.restore()
        wait_until(lambda: "the object store is available again" in run.output(), describe=run.output)
        finish(run)
    finally:
        run.kill()
    exact(machines)


@pytest.mark.long
def test_cluster_keeps_state_and_results_in_the_store(
    machines: Machines, store_server: Any, s3_plugin: Path, tmp_path: Path
) -> None:
    """The command is killed; another machine ends its job and resumes."""
    plugins = tmp_path / "plugins"
    (plugins / "s3").mkdir(parents=True)
    (plugins / "s3" / s3_plugin.name).symlink_to(s3_plugin)
    told = S3Client(machines.store.bucket).flink_options()
    with local_cluster(tmp_path / "cluster", plugins=plugins, options=told) as address:
        # Slow: its job is not to finish in the cluster before the other machine is there.
        first = machines.start(store_server.variables, "--cluster", address, capacity=2)

        def begun() -> bool:
            assert first.status() is None, first.output()
            return len(committed_parts(machines.store / "results")) > 1

        wait_until(begun)
        first.kill()
        finish(machines.start(store_server.variables, "--cluster", address))
    exact(machines)


def test_second_run_is_rejected(machines: Machines, store_server: Any) -> None:
    with held_lock(machines.store / "state" / "lock", "moved"):
        second = machines.start(store_server.variables)
        wait_until(lambda: second.status() is not None)
    assert second.status() == 2
    assert "pipeline 'moved' is running already" in second.output()
