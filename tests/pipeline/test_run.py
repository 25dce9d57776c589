"""A run from start to end, with a scripted Flink and engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.harness.operators import complete_checkpoint

from forebay.connectors.files.sink import GrowingSinks
from forebay.engine.replica import ServedModel
from forebay.errors import LaunchError, PipelineFailed, SettingError
from forebay.fleet.autoscale.meter import TopicBacklog
from forebay.fleet.discovery import FixedReplicas
from forebay.flink.job import Checkpoints, JobFailure
from forebay.flink.metrics import NOTHING_READ_MS
from forebay.flink.rest import FlinkRest
from forebay.pipeline import attempt, inference, run, supervisor
from forebay.pipeline import watch as watching
from forebay.pipeline.inference import Served
from forebay.pipeline.load import parse_spec
from forebay.pipeline.outputs import OutputCounts
from forebay.pipeline.plan import Plan
from forebay.pipeline.run import run_pipeline
from forebay.pipeline.scaled_engine import ScaledEngine
from forebay.pipeline.snapshot import Scaling, Snapshot
from forebay.pipeline.state_store import RunState, read_state
from forebay.pipeline.watch import FailedCommits
from forebay.settings import Settings

Look = Callable[[], str | None]


class FakeJob:
    """A job that takes `looks` to end; each may do something, and returns the answer of `ended`."""

    id = "job"
    rest = FlinkRest("http://flink")
    client = None

    def __init__(self, looks: Sequence[Look], counts: dict[str, float] | None = None) -> None:
        self._looks = list(looks)
        self._counts = counts or {}
        self.drained: list[Path] = []
        self.completed: tuple[tuple[int, int], ...] = ()

    def ended(self) -> str | None:
        return self._looks.pop(0)()

    def state(self) -> str:
        return "RUNNING"

    def restarts(self) -> int:
        return 0

    def counts(self) -> dict[str, float]:
        return self._counts

    def checkpoints(self) -> Checkpoints:
        return Checkpoints(len(self.completed), 0, self.completed)

    def task_managers(self) -> int:
        return 1

    def drain(self, folder: Path) -> None:
        self.drained.append(folder)


class IdleActivity:
    """Of a job that never has anything to commit."""

    def __init__(self, job: str) -> None:
        self._woken = threading.Event()

    def submitted(self, client: object) -> None: ...

    def await_answer(self, timeout_s: float) -> bool:
        return self._woken.wait(timeout_s)

    def take_reads(self) -> bool:
        return False

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None: ...


class Bench:
    """Runs a pipeline with a scripted Flink."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.home = folder / ".forebay" / "p" / "checkpoints"
        self.cancelled: list[str] = []
        self.seen: list[Snapshot] = []
        self.looks: list[Look] = [lambda: ""]
        self.monkeypatch = monkeypatch
        self.document: dict[str, Any] = {}
        (folder / "in.jsonl").write_text("{}\n")
        self.replace("POLL_S", 0.0)
        self.replace("flink_environment", lambda config: None)
        self.replace("build", lambda *arguments, **more: None)
        monkeypatch.setattr("forebay.flink.jvm.start_jvm", lambda *arguments, **more: None)
        self.replace("jvm_process", lambda: (2**22 + 1, 0.0))
        self.replace("served_model", lambda spec, url, note: ServedModel("m"))
        self.replace("EmbeddedActivity", IdleActivity)
        self.replace("submit", lambda env, name, url: FakeJob(self.looks))
        self.replace("end_job", lambda url, job, timeout_s, **more: self.cancelled.append(job))

    def replace(self, name: str, value: Any) -> None:
        holders = [
            module for module in (attempt, run, inference, supervisor, watching) if hasattr(module, name)
        ]
        assert holders
        for module in holders:
            self.monkeypatch.setattr(module, name, value)

    def run(self, engine: Any = ("http://engine",), **options: Any) -> Snapshot:
        document = {
            "name": "p",
            "source": {"type": "jsonl", "path": "in.jsonl"},
            "prompt": "x",
            "sink": {"type": "jsonl", "path": "out"},
            **self.document,
        }
        spec = parse_spec(document, base=self.folder)
        settings = Settings(home=self.folder / "home", python=Path())
        plan = Plan(spec, settings, in_process=True, **options)
        return run_pipeline(plan, nullcontext(engine), self.seen.append)


def state(bench: Bench) -> RunState:
    found = read_state(bench.home)
    assert found is not None
    return found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_engine_that_dies_during_a_run_is_restarted(bench: Bench, make_owned: Callable[..., Any]) -> None:
    engine = make_owned()
    bench.looks = [lambda: None, engine.die, lambda: None, lambda: ""]
    last = bench.run(engine)
    assert engine.restarted == [0]
    assert (last.state, last.engine_restarts) == ("FINISHED", 1)
    assert any("is being restarted" in now.engine_failure for now in bench.seen)
    assert not bench.cancelled


class Scaled(ScaledEngine):
    """Reports messages in turn, each with the number of replicas failed by then."""

    def __init__(self, *said: tuple[str, int]) -> None:
        self.scaling = Scaling()
        self.served = Served(FixedReplicas(("http://engine",)), "m")
        self._left = list(said)
        self._failed = 0

    @property
    def failed(self) -> int:
        return self._failed

    def observe(self, backlog: TopicBacklog | None, *, runs: bool = True) -> None: ...

    def check_replicas(self, note: Callable[[str], None] = lambda words: None) -> None:
        if self._left:
            words, self._failed = self._left.pop(0)
            note(words)


def test_only_ended_replicas_count_as_restarts(bench: Bench) -> None:
    bench.looks = [*[lambda: None] * 4, lambda: ""]
    text = ("the list cannot be written", 0), ("one ended", 1), ("the disk is full", 1)
    assert bench.run(Scaled(*text)).engine_restarts == 1
    shown = [(now.engine_failure, now.engine_restarts) for now in bench.seen]
    assert set(text) <= set(shown)


def test_run_without_its_engine_ends_and_can_resume(bench: Bench, make_owned: Callable[..., Any]) -> None:
    engine = make_owned()
    engine.broken = True
    bench.looks = [engine.die, lambda: None]
    with pytest.raises(PipelineFailed, match="cannot be restarted"):
        bench.run(engine)
    assert bench.cancelled == ["job"]
    assert not state(bench).finished


def test_silent_rest_service_does_not_end_a_run(bench: Bench) -> None:
    def gone() -> str:
        raise LaunchError("gone")

    job = FakeJob([lambda: None, lambda: ""])
    job.state = gone  # type: ignore[method-assign]
    bench.replace("submit", lambda env, name, url: job)
    assert bench.run().state == "FINISHED"
    assert state(bench).finished


@pytest.mark.parametrize("reached", [0, 1])
def test_source_at_its_limit_ends_the_job(bench: Bench, reached: int) -> None:
    job = FakeJob([*[lambda: None] * 3, lambda: ""], {"limit_reached": reached})
    bench.replace("submit", lambda env, name, url: job)
    assert bench.run().state == "FINISHED"
    # From the second look on: what the first one counted may be older than the last record.
    assert job.drained == [bench.home / "job"] * 2 * reached


def test_source_at_its_limit_waits_for_its_answers(bench: Bench) -> None:
    job = FakeJob([], {"limit_reached": 1, "accepted": 5})

    def shows(**counts: float) -> Look:
        def look() -> None:
            job.counts = lambda: {"limit_reached": 1, "accepted": 5, **counts}  # type: ignore[method-assign]

        return look

    nothing = shows(in_flight=0, oldest_read_timestamp_seconds=NOTHING_READ_MS / 1000)
    awaited = [shows(in_flight=2), shows(pending=1), shows(oldest_read_timestamp_seconds=7)]
    job._looks = [nothing, *awaited, nothing, nothing, lambda: ""]
    bench.replace("submit", lambda env, name, url: job)
    assert bench.run().state == "FINISHED"
    assert len(job.drained) == 1


@pytest.mark.parametrize("accepted", [0, 5])
def test_rejected_feed_is_given_up_only_without_events(bench: Bench, accepted: int) -> None:
    job = FakeJob([lambda: None, lambda: None, lambda: ""], {"accepted": accepted})
    restarts = iter([0, 1])
    job.restarts = lambda: next(restarts)  # type: ignore[method-assign]
    refused = JobFailure(1000, "", "FeedRefused: sse:h: the server answered 404")
    job.failures = lambda: [refused]  # type: ignore[attr-defined]
    bench.replace("submit", lambda env, name, url: job)
    if accepted:
        assert bench.run().state == "FINISHED"
    else:
        with pytest.raises(PipelineFailed, match="FeedRefused: sse:h: the server"):
            bench.run()
        assert bench.cancelled == ["job"]


def test_earlier_jobs_are_deleted_during_the_run(bench: Bench) -> None:
    old = bench.home / ("a" * 32)
    old.mkdir(parents=True)

    def complete() -> None:
        name = state(bench).job
        assert name is not None
        complete_checkpoint(bench.home / name, 1)
        job.completed = ((1, 1),)

    job = FakeJob([complete, lambda: "" if not old.exists() else None])
    bench.replace("submit", lambda env, name, url: job)
    assert bench.run().state == "FINISHED"


@pytest.mark.parametrize(
    ("counts", "came_in", "in_flight"),
    [
        ({"accepted": 9, "results": 4, "in_flight": 5}, 9, 5),
        # After a restore: what was found in the checkpoint leaves, too.
        ({"accepted": 751, "restored": 8, "results": 754, "in_flight": 5}, 759, 5),
        # Of one look, not all is of one moment.
        ({"accepted": 9, "results": 6, "dead_letters": 2, "in_flight": 5}, 9, 1),
    ],
)
def test_accepted_covers_output_and_in_flight(
    bench: Bench, counts: dict[str, float], came_in: int, in_flight: int
) -> None:
    bench.replace("submit", lambda env, name, url: FakeJob([lambda: None, lambda: ""], counts))
    bench.run()
    now = bench.seen[0]
    assert (now.accepted, now.results, now.in_flight) == (came_in, counts["results"], in_flight)
    assert now.accepted >= now.results + now.dead_letters + now.in_flight


def test_ctrl_c_cancels_the_job(bench: Bench) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    bench.looks = [lambda: None, interrupt]
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert bench.cancelled == ["job"]
    assert not state(bench).finished


def test_ctrl_c_during_submission_cancels_the_job(bench: Bench) -> None:
    def interrupted(env: Any, name: str, url: str) -> FakeJob:
        raise KeyboardInterrupt

    def end(rest: FlinkRest, job: str, timeout_s: float, *, unknown_s: float = 0.0) -> None:
        assert (rest, unknown_s > 0) == (FlinkRest("http://cluster:1"), True)
        bench.cancelled.append(job)

    bench.replace("submit", interrupted)
    bench.replace("end_job", end)
    bench.replace("check_cluster", lambda address: None)
    with pytest.raises(KeyboardInterrupt):
        bench.run(cluster="cluster:1")
    assert bench.cancelled == [state(bench).job]


def test_cluster_has_its_own_task_managers(bench: Bench) -> None:
    bench.document = {"parallelism": 2, "task_managers": 2}
    with pytest.raises(SettingError, match=r"task_managers: expected 1 with --cluster, .* found 2"):
        bench.run(cluster="cluster:1")


def test_run_killed_while_counting_has_finished(bench: Bench) -> None:
    def killed(self: Any, last: Snapshot, notes: object) -> Snapshot:
        raise KeyboardInterrupt

    bench.monkeypatch.setattr(OutputCounts, "since", killed)
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    with pytest.raises(SettingError, match="has finished"):
        bench.run()


def test_wait_for_the_engine_is_shown(bench: Bench) -> None:
    def waits(spec: Any, url: str, note: Callable[[str, float], None]) -> ServedModel:
        note("waiting for the engine", 3.0)
        return ServedModel("m")

    bench.replace("served_model", waits)
    bench.run()
    assert bench.seen[0] == Snapshot(3.0, "WAITING FOR THE ENGINE", engine_failure="waiting for the engine")


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        # (failures since the last restart, restores, newest checkpoint)
        ([(0, 0, 0), (2, 0, 1), (2, 0, 2), (3, 0, 3)], [0, 2, 2, 3]),
        # Metrics may be older than a checkpoint soon after the restore.
        ([(2, 0, 1), (0, 1, 1), (0, 1, 2), (1, 1, 3), (2, 1, 4)], [2, 2, 2, 2, 3]),
        ([(0, 1, 0), (1, 1, 8), (1, 2, 8), (1, 2, 9), (1, 2, 10), (3, 2, 11)], [0, 0, 0, 0, 0, 2]),
    ],
)
def test_failed_commits_add_up_without_a_restores_repeats(
    looks: list[tuple[int, int, int]], expected: list[int]
) -> None:
    count = FailedCommits()
    seen = [
        count(failed, Checkpoints(0, 0, (), newest_done=newest, restored=restored))
        for failed, restored, newest in looks
    ]
    assert seen == expected


def test_failed_commits_are_reported_until_the_end(bench: Bench) -> None:
    job = FakeJob([lambda: None, lambda: None, lambda: ""], {"failedCommittables": 2})
    bench.replace("submit", lambda env, name, url: job)
    assert bench.run().failed_commits == 2


def test_lines_left_by_a_kill_are_added_before_it_is_called_finished(bench: Bench) -> None:
    bench.run()
    folder = bench.folder / "out"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".new-0a-1c-2d-0.jsonl").write_text("{}\n")
    with pytest.raises(SettingError, match="has finished"):
        bench.run()
    assert [path.name for path in folder.glob("part-*")] == ["part-0a-0.jsonl"]


def test_lines_committed_to_an_earlier_folder_are_added(bench: Bench) -> None:
    def killed() -> str:
        raise KeyboardInterrupt

    bench.looks = [killed]
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    bench.document = {"sink": {"type": "jsonl", "path": "other"}}
    for number in range(2):
        (bench.folder / "out" / f".new-0a-1c-2d-{number}.jsonl").write_text("{}\n")
        bench.looks = [killed]
        with pytest.raises(KeyboardInterrupt):
            bench.run()
        assert (bench.folder / "out" / "part-0a-0.jsonl").read_text() == "{}\n" * (number + 1)


def test_run_whose_last_lines_cannot_be_added_fails(bench: Bench) -> None:
    bench.monkeypatch.setattr(GrowingSinks, "finish", lambda self: "No space left on device")
    with pytest.raises(PipelineFailed, match="last lines are not in the sink yet: No space left"):
        bench.run()
