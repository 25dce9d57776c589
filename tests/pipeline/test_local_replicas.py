"""Replicas that start, serve, drain and fail, without processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.engine.launch import LocalReplica
from forebay.errors import LaunchError, PipelineFailed
from forebay.fleet.autoscale.meter import DemandReport
from forebay.fleet.discovery import read_listing
from forebay.pipeline.local_replicas import MAX_FAILURES, LocalReplicas, has_drained, is_idle


@dataclass
class Processes:
    """Scripted processes: one that was asked to end does so in `reap`."""

    number: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    cores: list[tuple[int, ...]] = field(default_factory=list)
    full: bool = False
    unwritable: bool = False

    def add(self, cores: tuple[int, ...], *, port_base: int = 8100) -> LocalReplica:
        if self.full:
            raise LaunchError("a replica cannot be started: no memory")
        self.number += 1
        self.cores.append(cores)
        port = port_base + self.number
        return LocalReplica(
            id=str(port), url=f"http://127.0.0.1:{port}", port=port, model="m", log=Path("the.log"), pid=1,
            born_s=0.0, owner_pid=1,
        )  # fmt: skip

    def ended(self, replica: LocalReplica) -> int | None:
        return self.statuses.get(replica.id)

    def end(self, replica: LocalReplica) -> None:
        self.told.append(replica.id)

    def drop(self, replica: LocalReplica) -> None:
        self.statuses.pop(replica.id, None)
        if self.unwritable:
            raise OSError("no space left")

    def reap(self) -> None:
        self.statuses |= dict.fromkeys(self.told, 0)


class Owned:
    def __init__(self, folder: Path, most: int = 2, *, start_timeout_s: float = 100.0) -> None:
        self.processes = Processes()
        self.healthy: set[str] = set()
        self.busy: set[str] = set()
        self.output: list[str] = []
        self.path = folder / "replicas.json"
        self.replicas = LocalReplicas(
            self.processes,
            [(number,) for number in range(most)],
            self.path,
            healthy=lambda replica: replica.id in self.healthy,
            drained=lambda replica, left: replica.id not in self.busy,
            port_base=8100,
            start_timeout_s=start_timeout_s,
            note=self.output.append,
        )

    @property
    def listed(self) -> tuple[str, ...]:
        return tuple(url[-4:] for url in read_listing(self.path))

    def states(self) -> dict[str, str]:
        return {kept.replica.id: kept.state for kept in self.replicas.kept}

    def up(self, count: int, now_s: float = 0.0) -> None:
        self.replicas.scale(count, now_s)
        self.healthy |= {kept.replica.id for kept in self.replicas.kept}
        self.replicas.look(now_s + 10.0)


@pytest.fixture
def owned(tmp_path: Path) -> Owned:
    return Owned(tmp_path)


def test_healthy_replica_is_listed_and_its_boot_reported_once(owned: Owned) -> None:
    assert owned.listed == ()
    owned.replicas.scale(1, 0.0)
    owned.replicas.look(1.0)
    assert owned.replicas.counts(1.0).starting == (1.0,)
    assert owned.listed == ()
    owned.healthy.add("8101")
    owned.replicas.look(30.0)
    assert owned.listed == ("8101",)
    counts = owned.replicas.counts(31.0)
    assert (counts.ready, counts.starting, counts.booted_s) == (1, (), (30.0,))
    assert owned.replicas.counts(32.0).booted_s == ()


def test_surplus_replica_is_unlisted_drained_and_ended(owned: Owned) -> None:
    owned.up(2)
    owned.busy = {"8102"}
    owned.replicas.scale(1, 20.0)
    assert owned.listed == ("8101",)
    for now_s in (21.0, 300.0):
        owned.replicas.look(now_s)
        assert owned.processes.told == [], "it has requests"
    owned.busy.clear()
    owned.replicas.look(301.0)
    assert owned.processes.told == ["8102"]
    assert owned.replicas.counts(301.0).draining == 1
    owned.processes.reap()
    owned.replicas.look(302.0)
    assert owned.states() == {"8101": "ready"}
    assert owned.output == [], "a requested end is not a failure"


def test_draining_replica_is_taken_back_before_a_start(owned: Owned) -> None:
    owned.up(2)
    owned.busy = {"8102"}
    owned.replicas.scale(1, 20.0)
    version = read_listing(owned.path).version
    owned.replicas.scale(2, 25.0)
    assert owned.listed == ("8101", "8102")
    assert read_listing(owned.path).version > version
    assert owned.processes.number == 2


def test_starting_replica_goes_first_and_frees_its_cores(owned: Owned) -> None:
    owned.up(1)
    owned.replicas.scale(2, 20.0)
    owned.replicas.scale(1, 21.0)
    assert owned.states() == {"8101": "ready", "8102": "ending"}
    owned.replicas.scale(2, 22.0)
    assert len(owned.states()) == 2, "its cores are not free yet"
    owned.processes.reap()
    owned.replicas.look(23.0)
    owned.replicas.scale(2, 24.0)
    assert owned.states() == {"8101": "ready", "8103": "starting"}
    assert owned.processes.cores == [(0,), (1,), (1,)]


def test_dead_replica_is_replaced_and_slow_start_is_ended(owned: Owned) -> None:
    owned.up(1)
    owned.processes.statuses["8101"] = -9
    owned.replicas.look(20.0)
    assert owned.listed == ()
    assert "ended with status -9 while it served" in owned.output[0]
    owned.replicas.scale(1, 21.0)
    assert owned.states() == {"8102": "starting"}
    owned.replicas.look(122.0)
    assert owned.processes.told == ["8102"]
    assert "not healthy within 101 s" in owned.output[1]
    assert owned.replicas.failed == 2


def test_failures_with_others_left_slow_down_starts(owned: Owned) -> None:
    owned.up(1)
    now_s, started = 20.0, []
    while now_s < 500.0:
        owned.replicas.scale(2, now_s)
        for kept in owned.replicas.kept:
            if kept.state == "starting":
                started.append(now_s)
                owned.processes.statuses[kept.replica.id] = 1
        owned.replicas.look(now_s)
        now_s += 1.0
    assert owned.listed == ("8101",)
    assert len(started) < 10
    gaps = [later - earlier for earlier, later in pairwise(started)]
    assert gaps[0] <= 2
    assert gaps == sorted(gaps)


def test_run_fails_with_the_cause_if_all_fail(owned: Owned) -> None:
    def fail_for_ten_minutes() -> None:
        for second in range(600):
            owned.replicas.scale(1, float(second))
            owned.processes.statuses |= {kept.replica.id: 1 for kept in owned.replicas.kept}
            owned.replicas.look(float(second))

    with pytest.raises(PipelineFailed, match=r"failed 4 times: the replica at .* before it was healthy"):
        fail_for_ten_minutes()
    assert owned.processes.number == MAX_FAILURES


def test_run_fails_if_no_replica_gets_ready_at_any_pace(tmp_path: Path) -> None:
    owned = Owned(tmp_path, start_timeout_s=1000.0)
    now_s = 0.0

    def hang(times: int) -> None:
        nonlocal now_s
        for _ in range(times):
            owned.replicas.scale(1, now_s)
            now_s += 1001.0
            owned.replicas.look(now_s)
            owned.processes.reap()
            owned.replicas.look(now_s)

    hang(MAX_FAILURES - 1)
    owned.up(1, now_s)
    owned.processes.statuses |= {kept.replica.id: 1 for kept in owned.replicas.kept}
    owned.replicas.look(now_s + 20.0)
    now_s += 100.0
    # One was ready and died: starts do not hang forever.
    hang(MAX_FAILURES - 2)
    with pytest.raises(PipelineFailed, match=r"failed 4 times: .* was not healthy within 1001 s"):
        hang(1)


def test_past_failures_do_not_end_a_run_without_demand(owned: Owned) -> None:
    for number in range(MAX_FAILURES):
        now_s = 120.0 * number
        owned.replicas.scale(1, now_s)
        (kept,) = owned.replicas.kept
        owned.healthy.add(kept.replica.id)
        owned.replicas.look(now_s + 1)
        if number == MAX_FAILURES - 1:
            # It was to go, and dies before it has drained.
            owned.busy.add(kept.replica.id)
            owned.replicas.scale(0, now_s + 2)
        owned.processes.statuses[kept.replica.id] = 1
        owned.replicas.look(now_s + 3)
    assert owned.replicas.kept == ()


def test_simultaneous_deaths_count_once(owned: Owned) -> None:
    owned.replicas.scale(2, 0.0)
    for kept in owned.replicas.kept:
        owned.processes.statuses[kept.replica.id] = 137
    owned.replicas.look(1.0)
    assert owned.replicas.kept == ()
    owned.replicas.scale(2, 2.0)
    assert len(owned.replicas.kept) == 2


def test_failed_list_write_is_retried(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, listing: object) -> None:
        raise OSError("no space left")

    owned.replicas.scale(1, 0.0)
    owned.healthy.add(owned.replicas.kept[0].replica.id)
    with monkeypatch.context() as patched:
        patched.setattr("forebay.pipeline.local_replicas.write_listing", full)
        owned.replicas.look(1.0)
        owned.replicas.look(2.0)
    assert owned.listed == ()
    assert len([words for words in owned.output if "no space left" in words]) == 1
    owned.replicas.look(3.0)
    assert owned.listed == ("8101",)
    assert owned.replicas.failed == 0, "no replica is to blame"


def test_ended_replica_is_removed_despite_a_full_disk(owned: Owned) -> None:
    owned.up(1)
    owned.processes.unwritable = True
    owned.processes.statuses["8101"] = 1
    owned.replicas.look(20.0)
    assert owned.replicas.kept == ()
    assert "cannot be removed from the list of engines: no space left" in owned.output[-1]
    assert owned.replicas.failed == 1
    owned.replicas.scale(1, 21.0)
    assert owned.states() == {"8102": "starting"}


def test_failed_start_is_a_failure_of_the_step(owned: Owned) -> None:
    owned.processes.full = True
    with pytest.raises(LaunchError, match="no memory"):
        owned.replicas.scale(1, 0.0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("scale"), st.integers(0, 3)),
            st.tuples(st.sampled_from(["healthy", "idle", "busy", "reap"]), st.just(0)),
        ),
        max_size=40,
    )
)
def test_scaling_never_ends_a_busy_replica_or_reuses_a_place(
    tmp_path: Path, steps: list[tuple[str, int]]
) -> None:
    owned = Owned(tmp_path, most=3)
    now_s = 0.0
    for kind, count in steps:
        ids = {kept.replica.id for kept in owned.replicas.kept}
        ready = {kept.replica.id for kept in owned.replicas.kept if kept.state in ("ready", "draining")}
        if kind == "scale":
            owned.replicas.scale(count, now_s)
        elif kind == "healthy":
            owned.healthy |= ids
        elif kind == "busy":
            owned.busy |= ready
        elif kind == "idle":
            owned.busy.clear()
        else:
            owned.processes.reap()
        told = len(owned.processes.told)
        owned.replicas.look(now_s)
        assert not owned.busy & set(owned.processes.told[told:])
        places = [kept.place for kept in owned.replicas.kept]
        assert len(set(places)) == len(places) <= 3
        listed = {
            f"http://127.0.0.1:{kept.replica.id}" for kept in owned.replicas.kept if kept.state == "ready"
        }
        assert set(read_listing(owned.path)) == listed
        now_s += 1.0


URL = "http://127.0.0.1:8101"


def test_hung_subtask_with_requests_keeps_the_replica() -> None:
    """It may lack the new list, and would send requests there when it continues."""
    for hangs in (DemandReport(1000, listing=5, at_replicas={URL: 4}), DemandReport(1000, listing=4)):
        reports = {"a": DemandReport(60_000, listing=5), "b": hangs}
        assert not has_drained(reports, 60_000, URL, 5, lambda: True)
        # Long enough after its last report it counts as ended, but the replica itself reports requests.
        assert not has_drained(reports, 62_000, URL, 5, lambda: False)
        assert has_drained(reports, 62_000, URL, 5, lambda: True)
        del reports["b"]
        assert has_drained(reports, 60_000, URL, 5, lambda: True)


@pytest.mark.parametrize(
    ("status", "metrics", "idle"),
    [
        (200, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n", True),
        (200, "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n", False),
        (500, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n", False),
        (200, "something else\n", False),
    ],
)
def test_replica_is_idle_if_it_reports_so(status: int, metrics: str, idle: bool) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(metrics.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        replica = LocalReplica(
            id="1", url=URL, port=server.server_port, model="m", log=Path("the.log"), pid=1, born_s=0.0,
            owner_pid=1,
        )  # fmt: skip
        assert is_idle(replica) is idle
        thread.join()


@pytest.mark.parametrize(
    ("reports", "drained"),
    [
        ({"a": DemandReport(1000, listing=5)}, True),
        ({"a": DemandReport(1000, listing=4)}, False),
        ({"a": DemandReport(1000, listing=5, at_replicas={URL: 1})}, False),
        (
            {"a": DemandReport(1000, listing=6), "b": DemandReport(1000, listing=5, at_replicas={URL: 2})},
            False,
        ),
        ({"a": DemandReport(1000, listing=6, at_replicas={URL: 0, "http://other": 3})}, True),
    ],
)
def test_drained_requires_every_subtasks_report(reports: dict[str, DemandReport], drained: bool) -> None:
    assert has_drained(reports, 1000, URL, 5, lambda: True) is drained
    assert not has_drained(reports, 1000, URL, 5, lambda: False)
    # Nobody has reported for long: the replica itself is asked.
    for idle in (True, False):
        assert has_drained(reports, 62_000, URL, 5, lambda idle=idle: idle) is idle
