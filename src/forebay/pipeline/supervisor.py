"""Runs a pipeline to its end despite crashes: one attempt after another, each from the newest checkpoint.

Flink runs in a separate process, which is replaced when it dies or stalls.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

from forebay.clients.s3.location import Location, location_of
from forebay.clients.s3.lock import Fenced
from forebay.clock import uptime_s
from forebay.connectors.files.settings import StdoutSink
from forebay.connectors.files.sink import GrowingSinks
from forebay.errors import ForebayError, LaunchError, PipelineFailed, ResultsLost, SettingError, SetupError
from forebay.pipeline.flink_process import FlinkLauncher, FlinkProcess
from forebay.pipeline.inference import Served, served_by, why_unserved
from forebay.pipeline.messages import (
    CANCEL_S,
    AttemptLost,
    AttemptSpec,
    AwaitsKafka,
    Checked,
    Failed,
    Finished,
    JobLost,
    JobStatus,
    NewTopics,
    Preparation,
    Ready,
    Report,
    ResumesEarlier,
    Skipped,
    StopRequests,
)
from forebay.pipeline.outputs import OutputCounts, StdoutResults, end_notes
from forebay.pipeline.plan import resolved
from forebay.pipeline.resume import AlreadyFinished, RunRecord, checkpoint_to_resume, resume_text
from forebay.pipeline.scaled_engine import ScaledEngine
from forebay.pipeline.snapshot import (
    AWAITS_KAFKA,
    FAILED,
    INTERRUPTED,
    RESUMING,
    WAITING,
    RunStatus,
    Snapshot,
)
from forebay.pipeline.state_store import RunState, StateStore
from forebay.pipeline.supervision import (
    EngineSupervisor,
    JobStallDetector,
    OutageReason,
    Restarts,
    SupervisedEngine,
)

TICK_S = 0.5
PAUSED_S = 30.0
SET_BACK_S = 30.0
"""After the wall clock is set back, Flink's statuses, metrics and pauses are off for up to this long."""
EMBEDDED_CANCEL_S = 15.0
"""A job in its own JVM need not end cleanly: the next attempt ends its transactions."""
ERRORS = {
    error.__name__: error for error in (SettingError, SetupError, LaunchError, ResultsLost, PipelineFailed)
}

R = TypeVar("R", bound=Report)
Watch = Callable[[Snapshot], None]
Engine = Sequence[str] | ScaledEngine


class Supervisor:
    def __init__(
        self,
        preparation: Preparation,
        watch: Watch,
        *,
        store: StateStore,
        state: RunState,
        restore_from: Location | None,
        enough: Callable[[Snapshot], bool],
        files: GrowingSinks,
    ) -> None:
        self._plan = preparation.plan
        self._file_systems = preparation.file_systems
        self._store = store
        self._record = RunRecord(store, state)
        self._status = RunStatus(watch)
        self._restore_from = restore_from
        self._enough = enough
        self._files = files
        self._run_id = uuid.uuid4().hex
        self._fresh = self._plan.fresh
        self._served: Served | None = None
        self._keeper: EngineSupervisor | ScaledEngine = EngineSupervisor(())
        self._trouble: OutageReason | None = None
        self._printed: StdoutResults | None = None
        self._written: OutputCounts | None = None
        self._failed_before = 0
        self._attempt: AttemptSpec
        self._stall: JobStallDetector
        self._latest_wall_s: float
        self._drain: Callable[[], None] = lambda: None

    def run(self, enter: Callable[[], Engine], launcher: FlinkLauncher | None) -> Snapshot:
        """Make attempts until one reaches the pipeline's end. Blocks. Returns the last snapshot.

        `enter` returns the engine, and is called once Kafka has what the job needs. Each attempt takes a
        process of `launcher`. Without one there is a single attempt, in this process.
        """
        restarts = Restarts()
        if self._restore_from is not None:
            settings = resolved(self._plan.spec, self._plan.engine)
            self._status.note(resuming=resume_text(self._restore_from, self._record.state, settings))
        try:
            last: Snapshot | None = None
            while last is None:
                self._attempt = self._next_attempt()
                self._failed_before = self._status.last.failed_commits
                try:
                    last = self._run_here(enter) if launcher is None else self._run_in(launcher, enter)
                except JobLost as lost:
                    if launcher is None:
                        raise
                    last = self._resume(lost, restarts)
            return self._finish(last)
        except KeyboardInterrupt:
            self._status.show(replace(self._status.last, state=INTERRUPTED))
            raise
        except ForebayError as error:
            shown = self._recorded(error) if isinstance(error, ResultsLost) else error
            self._status.show(replace(self._status.last, state=FAILED, failure=str(shown)))
            if shown is error:
                raise
            raise shown from None

    def _recorded(self, lost: ResultsLost) -> ResultsLost:
        try:
            self._record.add_loss(lost)
        except (ForebayError, OSError) as error:
            return ResultsLost(f"{lost}. The loss could not be recorded, so that only this shows it: {error}")
        return lost

    def _next_attempt(self) -> AttemptSpec:
        chosen = self._restore_from is not None and self._restore_from == self._plan.from_checkpoint
        return AttemptSpec(
            plan=self._plan,
            file_systems=self._file_systems,
            state=self._record.state,
            job_id=uuid.uuid4().hex,
            run_id=self._run_id,
            restore_from=self._restore_from,
            chosen=chosen,
            fresh=self._fresh,
        )

    def _run_in(self, launcher: FlinkLauncher, enter: Callable[[], Engine]) -> Snapshot:
        self._printed = launcher.printed if isinstance(self._plan.spec.sink, StdoutSink) else None
        process = launcher.take(self._plan)
        self._drain = process.drain
        self._stall = JobStallDetector(
            time.monotonic(),
            self._plan.spec.deadline_s,
            embedded=self._plan.cluster is None,
            task_managers=self._plan.spec.task_managers,
        )
        self._latest_wall_s = time.time()
        self._store.report_renewals(process.confirm_lease)
        submitted = False
        try:
            process.send(self._attempt)
            self._await(Checked, process)
            process.send(self._serve(enter))
            self._await(Ready, process)
            process.go()
            submitted = True
            return self._await(Finished, process).snapshot
        except JobLost:
            raise
        except BaseException as error:
            if submitted and self._plan.cluster is not None:
                # Nothing else ends it there. A run that has taken over runs another job.
                process.cancel(CANCEL_S)
            elif submitted and not isinstance(error, Fenced):
                process.cancel(EMBEDDED_CANCEL_S)
            raise
        finally:
            process.kill()

    def _await(self, kind: type[R], process: FlinkProcess) -> R:
        """Raises `JobLost` if the attempt stalls."""
        while True:
            began_s = time.monotonic()
            report = process.receive(TICK_S)
            self._tick()
            if report is not None:
                self._handle(report)
                look = report if isinstance(report, JobStatus) else None
                self._stall.observe(time.monotonic(), look, served=self._keeper.serves)
                if isinstance(report, kind):
                    return report
            # The lease guard has suspended Flink, or this process was stopped, and the others with it.
            suspended = uptime_s() >= self._store.held_until_s()
            if suspended or time.monotonic() - began_s >= PAUSED_S:
                self._stall.excuse(time.monotonic())
            stalled = self._stall.stalled(time.monotonic())
            if stalled is not None:
                raise JobLost(f"{stalled}; it is considered lost")
            wall_s = time.time()
            self._latest_wall_s = max(self._latest_wall_s, wall_s)
            back_s = self._latest_wall_s - wall_s
            if back_s >= SET_BACK_S and self._plan.cluster is None:
                raise JobLost(f"the machine's clock was set back by {back_s:.0f} s")

    def _run_here(self, enter: Callable[[], Engine]) -> Snapshot:
        from forebay.flink.jvm import HEAP_MB, start_jvm
        from forebay.pipeline.attempt import JobAttempt

        self._printed = StdoutResults() if isinstance(self._plan.spec.sink, StdoutSink) else None
        with self._printed.taken() if self._printed else nullcontext():
            settings, jars = self._plan.settings, self._plan.jars
            start_jvm(settings.run / "flink", heap_mb=HEAP_MB, jars=jars, archive_dir=settings.java)
        stop_requests = StopRequests()

        def drain() -> None:
            stop_requests.drain = True

        def report(report: Report) -> None:
            self._tick()
            self._handle(report)

        self._drain = drain
        attempt = JobAttempt(self._attempt, report, stop_requests)
        attempt.check()
        return attempt.run(self._serve(enter))

    def _serve(self, enter: Callable[[], Engine]) -> Served:
        if self._served is None:
            engine = enter()
            if isinstance(engine, ScaledEngine):
                self._keeper, self._served = engine, engine.served
            else:
                self._keeper = EngineSupervisor(engine)
                self._served = served_by(
                    self._plan.spec,
                    engine or self._plan.engine,
                    lambda text, waited_s: self._status.wait(WAITING, text, waited_s),
                )
                # This machine may not reach the engine of a cluster.
                if self._plan.cluster is None and not isinstance(engine, SupervisedEngine):
                    self._trouble = OutageReason(partial(why_unserved, self._plan.spec, self._served))
            self._written = OutputCounts(self._plan.spec, self._printed)
        return self._served

    def _handle(self, report: Report) -> None:
        last = self._status.last
        match report:
            case AwaitsKafka(text, waited_s):
                self._status.wait(AWAITS_KAFKA, text, waited_s)
            case ResumesEarlier(checkpoint, reason):
                self._restore_from = location_of(checkpoint)
                self._attempt = replace(self._attempt, restore_from=self._restore_from)
                self._show_resuming(reason, f"resuming from checkpoint {self._restore_from.name}")
            case Skipped(gaps, records):
                self._status.add(gaps=(*last.gaps, *gaps), skipped_records=last.skipped_records + records)
            case Ready():
                self._record.begin(self._attempt, report)
                self._fresh = False
            case NewTopics(ids):
                self._record.add_topics(ids)
            case JobStatus():
                self._handle_status(report)
            case AttemptLost(cause):
                raise JobLost(cause)
            case Failed(error, message):
                trouble = last.store_failure
                raise ERRORS.get(error, PipelineFailed)(
                    f"{message}. {trouble}. The same command resumes" if trouble else message
                )

    def _handle_status(self, report: JobStatus) -> None:
        now = report.snapshot
        self._record.add_checkpoint(report.signs.checkpoint_ms)
        self._keeper.observe(now.backlog, runs=now.state == "RUNNING")
        if self._printed is not None:
            self._printed.check()
        if self._trouble is not None:
            usable = now.replicas if now.state == "RUNNING" else None
            self._status.note(engine_failure=self._trouble.observe(time.monotonic(), usable))
        self._status.show(replace(now, failed_commits=self._failed_before + now.failed_commits))
        if self._enough(self._status.last):
            self._drain()

    def _tick(self) -> None:
        self._store.check_held()
        self._files.check_held()
        trouble = self._store.trouble()
        if trouble != self._status.last.store_failure:
            self._status.add(store_failure=trouble)
        self._keeper.check_replicas(
            lambda text: self._status.add(engine_restarts=self._keeper.failed, engine_failure=text)
        )
        if self._keeper.scaling != self._status.last.scaling:
            self._status.add(scaling=self._keeper.scaling)

    def _resume(self, lost: JobLost, restarts: Restarts) -> Snapshot | None:
        """Return the last snapshot if no attempt is needed. Raises `PipelineFailed` after too many."""
        self._record.end_orphan()
        pause_s = restarts.grant(time.monotonic())
        if pause_s is None:
            raise PipelineFailed(
                f"{lost}; Flink was restarted {restarts.most} times within {restarts.within_s / 60:.0f} "
                f"minutes. The same command resumes"
            ) from None
        if not self._fresh:
            noted = self._record.state.job == self._attempt.job_id
            if noted or self._plan.from_checkpoint is None:
                try:
                    self._restore_from = checkpoint_to_resume(
                        self._plan.spec, self._store, self._record.state
                    )
                except AlreadyFinished:
                    # Flink was lost between the job's end and the report of it.
                    return replace(
                        self._status.last, state="FINISHED", in_flight=0, pending=0, oldest_read_ms=0
                    )
        where = "the beginning" if self._restore_from is None else f"checkpoint {self._restore_from.name}"
        self._show_resuming(
            str(lost),
            f"resuming from {where}, restart {restarts.recent} of at most {restarts.most} in "
            f"{restarts.within_s / 60:.0f} minutes",
        )
        time.sleep(pause_s)
        return None

    def _show_resuming(self, reason: str, text: str) -> None:
        resumes = (*self._status.last.resumes, reason)
        self._status.note(resumes=resumes, resuming=f"{reason}; {text}")
        self._status.show(replace(self._status.last, state=RESUMING))

    def _finish(self, last: Snapshot) -> Snapshot:
        self._files.check_held()
        # A run that is killed while counting has finished nevertheless.
        self._record.finish()
        notes = end_notes(self._store, self._attempt.job_id)
        self._store.delete(self._attempt.job_id, at_once=False)
        assert self._written is not None
        if trouble := self._files.finish():
            raise PipelineFailed(
                f"the job has finished, but its last lines are not in the sink yet: {trouble}. "
                f"The same command adds them"
            )
        failed_commits = self._status.last.failed_commits
        self._status.show(replace(self._written.since(last, notes), failed_commits=failed_commits))
        return self._status.last
