"""A run continues when the process that runs its job dies; processes are scripted."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.operators import complete_checkpoint

from forebay.clients.s3.lock import Fenced
from forebay.engine.replica import ServedModel
from forebay.errors import LaunchError, PipelineFailed, ResultsLost, SettingError
from forebay.fleet.discovery import FixedReplicas
from forebay.flink.checkpoints import END_MARK, drain_folder
from forebay.pipeline import inference, run, supervisor
from forebay.pipeline.inference import Served
from forebay.pipeline.load import parse_spec
from forebay.pipeline.messages import (
    AttemptLost,
    AttemptSpec,
    AwaitsKafka,
    Checked,
    Failed,
    Finished,
    JobStatus,
    NewTopics,
    Preparation,
    Ready,
    Report,
    ResumesEarlier,
    Signs,
    Skipped,
)
from forebay.pipeline.plan import Plan
from forebay.pipeline.run import run_pipeline
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.state_store import LocalStore, RunState, read_state
from forebay.pipeline.supervision import SILENT_S, UNUSED_S, OutageReason
from forebay.settings import Settings

RUNS = JobStatus(Snapshot(1.0, "RUNNING", accepted=3, results=2, in_flight=1), Signs(checkpoint_ms=77))
DONE = Finished(Snapshot(9.0, "FINISHED", accepted=3, results=3))
NOBODY = (2**22 + 1, 0.0)
"""Not a valid process id on Linux."""
STARTS = (Checked(), Ready(NOBODY))
Step = Report | Callable[["Process"], object]


class Process:
    """A process that holds Flink, with scripted reports; a function among them is called instead, and its
    exception raised to the receiver."""

    def __init__(self, home: Path, *steps: Step) -> None:
        self.home = home
        self.steps = list(steps)
        self.order: AttemptSpec | None = None
        self.served: Served | None = None
        self.output: list[str] = []

    def send(self, what: object) -> None:
        if isinstance(what, AttemptSpec):
            self.order = what
        if isinstance(what, Served):
            self.served = what
        self.output.append(type(what).__name__)

    def go(self) -> None:
        self.output.append("go")

    def confirm_lease(self, until_s: float) -> None: ...

    def drain(self) -> None:
        self.output.append("drain")

    def receive(self, timeout_s: float) -> Report | None:
        step = self.steps.pop(0)
        if not callable(step):
            return step
        found = step(self)
        return found if isinstance(found, Finished) else None

    def cancel(self, timeout_s: float) -> None:
        self.output.append("cancel")

    def kill(self) -> None:
        self.output.append("kill")

    def checkpoint(self, number: int) -> None:
        assert self.order is not None
        complete_checkpoint(self.home / self.order.job_id, number)


class Launcher:
    def __init__(self, processes: list[Process]) -> None:
        self.printed = None
        self.prepared: list[Preparation] = []
        self._left = list(processes)

    def prepare(self, preparation: Preparation) -> None:
        assert not isinstance(preparation, AttemptSpec)
        self.prepared.append(preparation)

    def take(self, plan: Plan) -> Process:
        assert plan.jars == (), "nothing is read from topics"
        return self._left.pop(0)


class Bench:
    """A pipeline with scripted attempts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.home = folder / ".forebay" / "p" / "checkpoints"
        self.seen: list[Snapshot] = []
        self.pauses: list[float] = []
        self.processes: list[Process] = []
        self.prepared: list[Preparation] = []
        self.entered = 0
        self.urls = ["http://engine"]
        (folder / "in.jsonl").write_text("{}\n")
        monkeypatch.setattr(inference, "served_model", lambda spec, url, note: ServedModel("m"))
        monkeypatch.setattr(supervisor.time, "sleep", self.pauses.append)

    def attempts(self, *scripts: tuple[Step, ...]) -> None:
        self.processes = [Process(self.home, *script) for script in scripts]

    @contextmanager
    def engine(self) -> Iterator[list[str]]:
        self.entered += 1
        yield self.urls

    def run(self, enough: Callable[[Snapshot], bool] = lambda _: False, **options: Any) -> Snapshot:
        document = {
            "name": "p",
            "source": {"type": "jsonl", "path": "in.jsonl"},
            "prompt": "x",
            "sink": {"type": "jsonl", "path": "out"},
        }
        spec = parse_spec(document, base=self.folder)
        settings = Settings(home=self.folder / "home", python=Path())
        launcher: Any = Launcher(self.processes)
        self.prepared = launcher.prepared
        plan = Plan(spec, settings, **options)
        return run_pipeline(plan, self.engine(), self.seen.append, enough=enough, launcher=launcher)

    @property
    def state(self) -> RunState:
        found = read_state(self.home)
        assert found is not None
        return found

    def orders(self) -> list[AttemptSpec]:
        return [process.order for process in self.processes if process.order is not None]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def complete(number: int) -> Step:
    return lambda process: process.checkpoint(number)


def raises(error: BaseException) -> Step:
    def step(process: Process) -> None:
        raise error

    return step


def test_run_follows_the_steps_of_an_attempt(bench: Bench) -> None:
    bench.attempts((*STARTS, RUNS, complete(1), RUNS, DONE))
    last = bench.run()
    (process,) = bench.processes
    assert process.output == ["AttemptSpec", "Served", "go", "kill"]
    assert [preparation.plan.spec.name for preparation in bench.prepared] == ["p"]
    assert (last.state, last.resumes, bench.entered) == ("FINISHED", (), 1)
    assert bench.state.finished
    assert bench.state.completed is not None
    assert (bench.state.completed.number, bench.state.completed.triggered_ms) == (1, 77)


def test_plan_names_the_engine_if_nothing_was_started(bench: Bench) -> None:
    bench.attempts((*STARTS, RUNS, DONE))
    bench.urls = []
    bench.run(engine=("http://elsewhere",))
    served = bench.processes[0].served
    assert served is not None
    assert served.replicas == FixedReplicas(("http://elsewhere",))


def test_skipped_records_add_up_over_attempts(bench: Bench) -> None:
    gone = Skipped(("t/0: offsets 3 to 5",), 3)
    bench.attempts((Checked(), gone, Ready(NOBODY), RUNS, AttemptLost("gone")), (gone, *STARTS, RUNS, DONE))
    last = bench.run()
    assert (last.gaps, last.skipped_records) == (gone.gaps * 2, 6)
    assert any(now.gaps == gone.gaps for now in bench.seen)


def test_topic_ids_outlive_a_fresh_start(bench: Bench) -> None:
    topics = {"t": ("id-1", "id-2")}
    bench.attempts((Checked(), Ready(NOBODY, topics=topics), RUNS, NewTopics({"u": "id-u"}), DONE))
    bench.run()
    assert bench.state.topics == {**topics, "u": ("id-u",)}
    seen: list[RunState] = []
    bench.attempts((Checked(), lambda process: seen.append(process.order.state), *STARTS[1:], DONE))
    bench.run(fresh=True)
    assert seen[0].topics == {**topics, "u": ("id-u",)}


def test_store_trouble_is_shown_and_named_as_the_cause(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [""]
    monkeypatch.setattr(LocalStore, "trouble", lambda self: now[0])

    def expired(process: Process) -> None:
        now[0] = "the keys of bucket b have expired; renew them"

    def renewed(process: Process) -> None:
        now[0] = ""

    bench.attempts((*STARTS, RUNS, expired, RUNS, renewed, RUNS, expired, Failed("PipelineFailed", "403")))
    with pytest.raises(PipelineFailed, match=r"403\. the keys of bucket b .* The same command resumes"):
        bench.run()
    told = [now.store_failure for now in bench.seen]
    assert [words for words, before in zip(told, ["", *told], strict=False) if words != before] == [
        "the keys of bucket b have expired; renew them",
        "",
        "the keys of bucket b have expired; renew them",
    ]


@pytest.mark.parametrize("cluster", [None, "127.0.0.1:1"])
def test_taken_over_run_leaves_no_job_on_a_cluster(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cluster: str | None
) -> None:
    monkeypatch.setattr(run, "check_cluster", lambda cluster: None)
    bench.attempts((*STARTS, RUNS, raises(Fenced("another run has taken over"))))
    with pytest.raises(Fenced):
        bench.run(cluster=cluster)
    (process,) = bench.processes
    assert process.output[3:] == (["kill"] if cluster is None else ["cancel", "kill"])


def test_suspended_attempt_is_not_a_stall(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the lease is not renewed, Flink is suspended and does not answer."""
    now_s, until_s = [0.0], [100.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(supervisor, "uptime_s", lambda: now_s[0])
    monkeypatch.setattr(LocalStore, "held_until_s", lambda self: until_s[0])

    def wait(process: Process) -> None:
        now_s[0] += 10.0

    def renewed(process: Process) -> None:
        until_s[0] = 1e6

    silence = [wait] * int(SILENT_S // 10)
    bench.attempts((*STARTS, RUNS, *[wait] * 10, *silence, renewed, RUNS, DONE))
    assert bench.run().resumes == ()
    bench.attempts((*STARTS, RUNS, renewed, *silence, RUNS), (*STARTS, DONE))
    assert len(bench.run(fresh=True).resumes) == 1


def test_run_that_was_stopped_is_not_a_stall(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop of all processes, this one may be the first to continue."""
    now_s = [0.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now_s[0])

    def stop(process: Process) -> None:
        now_s[0] += SILENT_S

    bench.attempts((*STARTS, RUNS, stop, RUNS, stop, RUNS, DONE))
    assert bench.run().resumes == ()


def test_clock_that_is_set_back_starts_flink_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    wall_s = [1e9]
    monkeypatch.setattr(supervisor.time, "time", lambda: wall_s[0])

    def step(seconds: float) -> Step:
        return lambda process: wall_s.append(wall_s.pop() + seconds)

    steps = (step(3600.0), RUNS, step(-supervisor.SET_BACK_S / 2), RUNS)
    bench.attempts((*STARTS, *steps, step(-3600.0), RUNS), (*STARTS, RUNS, DONE))
    (why,) = bench.run().resumes
    assert why == "the machine's clock was set back by 3615 s"


def test_reason_why_the_engine_gets_no_requests_is_shown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now_s[0])
    trouble = OutageReason(lambda: "it serves other, not m", lambda task: task())
    monkeypatch.setattr(supervisor, "OutageReason", lambda ask: trouble)

    def wait(process: Process) -> None:
        now_s[0] += UNUSED_S

    unused, used = (replace(RUNS, snapshot=replace(RUNS.snapshot, replicas=replicas)) for replicas in (0, 1))
    bench.attempts((*STARTS, RUNS, unused, wait, unused, used, DONE))
    bench.run()
    shown = [now.engine_failure for now in bench.seen]
    assert [words for words, before in zip(shown, ["", *shown], strict=False) if words != before] == [
        "it serves other, not m",
        "",
    ]


def test_job_is_recorded_before_submission(bench: Bench) -> None:
    def noted(process: Process) -> None:
        assert process.order is not None
        assert (bench.state.job, bench.state.jvm) == (process.order.job_id, NOBODY)
        assert process.output[-1] == "go"

    bench.attempts((*STARTS, noted, DONE))
    assert bench.run().state == "FINISHED"


def test_lost_attempt_resumes_from_the_newest_checkpoint(bench: Bench) -> None:
    lost = AttemptLost("Flink's JVM was killed")
    bench.attempts(
        (*STARTS, RUNS, complete(4), RUNS, lost), (*STARTS, RUNS, complete(5), lost), (*STARTS, RUNS, DONE)
    )
    last = bench.run()
    first, second, third = bench.orders()
    assert first.restore_from is None
    assert second.restore_from == bench.home / first.job_id / "chk-4"
    assert third.restore_from == bench.home / second.job_id / "chk-5"
    assert len({order.job_id for order in bench.orders()}) == 3
    assert last.resumes == ("Flink's JVM was killed", "Flink's JVM was killed")
    assert bench.pauses == [0.0, 1.0]
    words = list(dict.fromkeys(now.resuming for now in bench.seen if now.resuming))
    assert words == [
        "Flink's JVM was killed; resuming from checkpoint chk-4, restart 1 of at most 10 in 10 minutes",
        "Flink's JVM was killed; resuming from checkpoint chk-5, restart 2 of at most 10 in 10 minutes",
    ]
    assert [now.state for now in bench.seen].count("RESUMING") == 2
    assert bench.entered == 1, "the engine outlives the attempts"
    assert all(process.output[-1] == "kill" for process in bench.processes)


def test_failed_commits_add_up_over_attempts(bench: Bench) -> None:
    failed = replace(RUNS, snapshot=replace(RUNS.snapshot, failed_commits=2))
    bench.attempts((*STARTS, failed, failed, AttemptLost("gone")), (*STARTS, RUNS, failed, DONE))
    assert bench.run().failed_commits == 4


def test_run_does_not_continue_after_lost_results(bench: Bench) -> None:
    lost = Failed("ResultsLost", "results are missing in topic 'out'. Resume with --from-checkpoint C")
    bench.attempts((*STARTS, RUNS, complete(3), RUNS, lost))
    with pytest.raises(ResultsLost, match="results are missing"):
        bench.run()
    assert bench.seen[-1].state == "FAILED"
    assert not bench.state.finished
    with pytest.raises(
        SettingError, match=r"last run of pipeline 'p' lost results\. results are missing .* C$"
    ):
        bench.run()
    job = bench.state.job
    assert job is not None
    bench.attempts((*STARTS, RUNS, DONE))
    assert bench.run(from_checkpoint=bench.home / job / "chk-3").state == "FINISHED"
    assert bench.state.lost is None


def test_loss_that_cannot_be_recorded_is_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_disk(process: Process) -> None:
        def refuse(self: LocalStore, state: RunState, *, patient: bool = True) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(LocalStore, "write", refuse)

    bench.attempts((*STARTS, RUNS, fill_disk, Failed("ResultsLost", "results are missing in topic 'out'")))
    with pytest.raises(ResultsLost) as raised:
        bench.run()
    for words in (str(raised.value), bench.seen[-1].failure):
        assert words is not None
        assert "results are missing in topic 'out'" in words
        assert "run.json, the record of this pipeline's runs, cannot be written: No space left" in words


def test_fresh_start_discards_lost_results(bench: Bench) -> None:
    bench.attempts((*STARTS, Failed("ResultsLost", "gone")))
    with pytest.raises(ResultsLost):
        bench.run()
    bench.attempts((*STARTS, DONE))
    assert bench.run(fresh=True).state == "FINISHED"


def test_resume_from_an_earlier_checkpoint_is_recorded(bench: Bench) -> None:
    def resumes_4(process: Process) -> None:
        assert process.order is not None
        newest = process.order.restore_from
        assert newest is not None
        process.steps.insert(0, ResumesEarlier(str(newest.parent / "chk-4"), "Kafka has aborted it"))

    bench.attempts(
        (*STARTS, complete(4), complete(5), AttemptLost("gone")),
        (resumes_4, *STARTS, AttemptLost("gone again")),
        (*STARTS, DONE),
    )
    last = bench.run()
    assert [order.restore_from and order.restore_from.name for order in bench.orders()] == [
        None,
        "chk-5",
        "chk-4",
    ]
    assert last.resumes == ("gone", "Kafka has aborted it", "gone again")


def test_the_next_run_names_what_it_resumes_and_what_has_changed(bench: Bench) -> None:
    bench.attempts((*STARTS, RUNS, complete(7), RUNS, raises(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert {now.resuming for now in bench.seen} == {""}
    bench.attempts((*STARTS, RUNS, DONE))
    bench.seen.clear()
    bench.run(engine=("http://other",))
    (text,) = {now.resuming for now in bench.seen}
    assert text.startswith(
        "resuming from checkpoint chk-7 of 1970-01-01 00:00:00 UTC; changed since the last run"
    )
    assert text.endswith('engine.url [] → ["http://other"]')


@pytest.mark.parametrize("steps", [(), (Checked(),), STARTS])
def test_attempt_lost_at_its_start_is_repeated_unchanged(bench: Bench, steps: tuple[Step, ...]) -> None:
    complete_checkpoint(bench.home / ("a" * 32), 7)
    bench.attempts((*steps, AttemptLost("gone")), (*STARTS, DONE))
    bench.run(fresh=True)
    first, second = bench.orders()
    assert first.fresh
    assert (second.fresh, second.restore_from) == (len(steps) < 2, None)
    assert not (bench.home / ("a" * 32)).exists()


def test_chosen_checkpoint_counts_until_the_job_has_its_own(bench: Bench) -> None:
    chosen = complete_checkpoint(bench.home / ("a" * 32), 3)
    complete_checkpoint(bench.home / ("a" * 32), 4)
    lost = AttemptLost("gone")
    bench.attempts(
        (lost,), (*STARTS, lost), (*STARTS, complete(8), lost), (*STARTS, DONE),
    )  # fmt: skip
    bench.run(from_checkpoint=chosen)
    orders = bench.orders()
    assert [order.chosen for order in orders] == [True, True, True, False]
    assert [order.restore_from for order in orders[:3]] == [chosen] * 3
    assert orders[3].restore_from == bench.home / orders[2].job_id / "chk-8"


def test_eleventh_loss_in_ten_minutes_ends_the_run(bench: Bench) -> None:
    bench.attempts(*[(*STARTS, complete(number), AttemptLost("gone")) for number in range(1, 12)])
    with pytest.raises(PipelineFailed, match="gone; Flink was restarted 10 times within 10 minutes"):
        bench.run()
    assert bench.pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    assert (bench.seen[-1].state, len(bench.seen[-1].resumes)) == ("FAILED", 10)
    assert not bench.state.finished


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("SettingError", SettingError),
        ("LaunchError", LaunchError),
        ("PipelineFailed", PipelineFailed),
        ("Unheard", PipelineFailed),
    ],
)
def test_permanent_failure_ends_the_run(bench: Bench, error: str, kind: type[Exception]) -> None:
    bench.attempts((*STARTS, RUNS, Failed(error, "no such topic")))
    with pytest.raises(kind, match=r"^no such topic$"):
        bench.run()
    assert bench.processes[0].output == ["AttemptSpec", "Served", "go", "cancel", "kill"]
    assert (bench.seen[-1].state, bench.seen[-1].failure) == ("FAILED", "no such topic")


def test_stalled_job_is_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    away = replace(RUNS, signs=Signs(answers=False))
    times = iter(range(0, 100_000, 4))
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: float(next(times)))
    bench.attempts((*STARTS, RUNS, *[away] * 9), (*STARTS, RUNS, DONE))
    last = bench.run()
    assert len(last.resumes) == 1
    assert last.resumes[0].startswith("Flink's REST service did not answer for ")


@pytest.mark.parametrize("seen", [False, True])
def test_job_finished_as_its_jvm_died_has_finished(bench: Bench, seen: bool) -> None:
    def finish(process: Process) -> None:
        # Before Flink deletes the checkpoints of a job that finishes, the job marks its end.
        assert process.order is not None
        job = bench.home / process.order.job_id
        (job / END_MARK).touch()
        (job / "chk-1" / "_metadata").unlink()
        (job / "chk-1").rmdir()

    bench.attempts((*STARTS, complete(1), *[RUNS] * seen, finish, AttemptLost("gone")))
    assert bench.run().state == "FINISHED"
    assert bench.state.finished


def test_restore_at_the_end_is_recorded(bench: Bench) -> None:
    def mark(process: Process) -> None:
        assert process.order is not None
        (bench.home / process.order.job_id / END_MARK).touch()

    noted: list[bool] = []

    def note(process: Process) -> None:
        noted.append(bench.state.restored_at_end)

    bench.attempts(
        (*STARTS, complete(1), note, mark, AttemptLost("gone")),
        # It is restored from the first one's checkpoint, and the third from its own.
        (*STARTS, note, complete(2), AttemptLost("gone")),
        (*STARTS, note, complete(3), DONE),
    )
    bench.run()
    assert noted == [False, True, True]


def test_drain_savepoint_is_recorded_as_an_end(bench: Bench) -> None:
    def drained(process: Process) -> None:
        assert process.order is not None
        job = bench.home / process.order.job_id
        complete_checkpoint(job / drain_folder(0), 7, name="savepoint-1a2b")
        (job / END_MARK).touch()

    noted: list[bool] = []
    bench.attempts(
        (*STARTS, drained, AttemptLost("gone")),
        (*STARTS, lambda process: noted.append(bench.state.restored_at_end), DONE),
    )
    bench.run()
    assert [order.restore_from.name for order in bench.orders() if order.restore_from] == ["savepoint-1a2b"]
    assert noted == [True]


def test_new_topics_are_recorded_later_if_the_disk_is_full(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = LocalStore.write

    def full(self: LocalStore, state: RunState, *, patient: bool = True) -> None:
        if state.topics and state.completed is None:
            raise OSError("no space left on device")
        write(self, state, patient=patient)

    monkeypatch.setattr(LocalStore, "write", full)
    bench.attempts((*STARTS, RUNS, NewTopics({"u": "id-u"}), complete(1), RUNS, DONE))
    assert bench.run().state == "FINISHED"
    assert bench.state.topics == {"u": ("id-u",)}


@pytest.mark.parametrize("finished", [False, True])
def test_record_that_cannot_be_written_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    write = LocalStore.write

    def full(self: LocalStore, state: RunState, *, patient: bool = True) -> None:
        if state.finished == finished:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, state, patient=patient)

    monkeypatch.setattr(LocalStore, "write", full)
    bench.attempts((*STARTS, RUNS, DONE))
    with pytest.raises(PipelineFailed, match=r"run.json, the record of .* cannot be written: No space left"):
        bench.run()
    assert bench.seen[-1].state == "FAILED"


@pytest.mark.parametrize("then", [RUNS, DONE])
def test_removed_results_are_recorded_as_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, then: Report
) -> None:
    with monkeypatch.context() as patched:

        def remove(process: Process) -> Report:
            shutil.rmtree(bench.folder / "out")
            if then is DONE:
                # The last look was before it.
                patched.setattr("forebay.pipeline.supervisor.Supervisor._tick", lambda self: None)
            return then

        bench.attempts((*STARTS, RUNS, remove, DONE))
        with pytest.raises(ResultsLost, match="was removed or replaced during the run"):
            bench.run()
    assert not bench.state.finished
    with pytest.raises(SettingError, match=r"last run of pipeline 'p' lost results\. .*/out was removed"):
        bench.run()


@pytest.mark.parametrize("place", ["home", "out"])
def test_run_ends_if_its_state_or_its_results_are_removed(bench: Bench, place: str) -> None:
    folders = {"home": bench.home, "out": bench.folder / "out"}
    bench.attempts((*STARTS, RUNS, lambda process: shutil.rmtree(folders[place]), RUNS, DONE))
    with pytest.raises(PipelineFailed, match="was removed or replaced during the run"):
        bench.run()
    assert bench.processes[0].output[-2:] == ["cancel", "kill"]
    assert bench.seen[-1].state == "FAILED"


@pytest.mark.parametrize(("submitted", "said"), [(True, ["go", "cancel", "kill"]), (False, ["kill"])])
def test_ctrl_c_cancels_the_job_and_reports_its_end(bench: Bench, submitted: bool, said: list[str]) -> None:
    bench.attempts((*(STARTS if submitted else ()), *([RUNS] * submitted), raises(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert bench.processes[0].output == ["AttemptSpec", *(["Served"] * submitted), *said]
    assert bench.seen[-1].state == "INTERRUPTED"
    assert bench.seen[-1].results == 2 * submitted


def test_drain_request_reaches_the_process(bench: Bench) -> None:
    bench.attempts((*STARTS, RUNS, DONE))
    bench.run(enough=lambda now: now.results == 2)
    assert "drain" in bench.processes[0].output


def test_wait_for_kafka_is_shown(bench: Bench) -> None:
    bench.attempts((AwaitsKafka("no broker", 3.0), *STARTS, DONE))
    bench.run()
    assert (bench.seen[0].elapsed_s, bench.seen[0].state, bench.seen[0].engine_failure) == (
        3.0,
        "WAITING FOR KAFKA",
        "no broker",
    )


def test_elapsed_time_continues_over_attempts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(0, 100_000, 2))
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: float(next(times)))
    bench.attempts((*STARTS, RUNS, AttemptLost("gone")), (*STARTS, RUNS, RUNS, DONE))
    bench.run()
    elapsed = [now.elapsed_s for now in bench.seen]
    assert elapsed == sorted(elapsed)
