"""Runs a pipeline to its end despite crashes: one attempt after another, each from the newest checkpoint.

Flink runs in a separate process, which is replaced when it dies or stalls. This process keeps the engine, the
record of the runs, and the displayed state.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from forebay.clients.s3.client import StoreAway, StoreRefused
from forebay.clients.s3.location import Location, below, location_of
from forebay.clients.s3.lock import Fenced
from forebay.clock import uptime_s
from forebay.connectors.stdout import StdoutSink
from forebay.errors import ForebayError, LaunchError, PipelineFailed, ResultsLost, SettingError, SetupError
from forebay.flink.checkpoints import job_of
from forebay.flink.jvm import HEAP_MB, start_jvm
from forebay.pipeline.attempt import Attempt, AttemptSpec
from forebay.pipeline.file_systems import file_system_options
from forebay.pipeline.flink_process import FlinkLauncher, FlinkProcess, StdoutResults
from forebay.pipeline.inference import Served, served_by
from forebay.pipeline.job_graph import connector_jars
from forebay.pipeline.output_counts import OutputCounts, end_notes
from forebay.pipeline.reports import (
    AwaitsKafka,
    Checked,
    Failed,
    Finished,
    JobStatus,
    Lost,
    NewTopics,
    Ready,
    Report,
    ResumesEarlier,
    Skipped,
)
from forebay.pipeline.resume import (
    AlreadyFinished,
    CheckpointCleaner,
    checkpoint_to_resume,
    end_orphan,
    fingerprint,
    forget,
)
from forebay.pipeline.run_state import RunState
from forebay.pipeline.scaling.engine import ScaledEngine
from forebay.pipeline.snapshot import AWAITS_KAFKA, FAILED, INTERRUPTED, RESUMING, WAITING, Snapshot
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import StateStore
from forebay.pipeline.supervision import EngineSupervisor, JobStallDetector, Restarts
from forebay.pipeline.watch import CANCEL_S, JobLost, StopRequests
from forebay.processes import pid_space
from forebay.settings import Settings


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Command-line options of a run.

    `fresh` discards the checkpoints; results are added to those in the sink. `from_checkpoint` replaces the
    recorded checkpoint: results committed after it are duplicated. `cluster` is the `HOST:PORT` of a running
    Flink. Once `enough` returns true for a look at the job, the job commits what it has read and ends.
    `in_process`: Flink runs in this process's JVM, the run ends if that is lost, and its state must be in a
    folder, because nothing would suspend Flink if an object store's lease expired.
    """

    fresh: bool = False
    from_checkpoint: Location | None = None
    cluster: str | None = None
    enough: Callable[[Snapshot], bool] = lambda now: False
    in_process: bool = False


TICK_S = 0.5
EMBEDDED_CANCEL_S = 15.0
"""A job in its own JVM need not end cleanly: the next attempt ends its transactions."""
ERRORS = {
    error.__name__: error for error in (SettingError, SetupError, LaunchError, ResultsLost, PipelineFailed)
}

R = TypeVar("R", bound=Report)
Watch = Callable[[Snapshot], None]
Engine = Sequence[str] | ScaledEngine
"""The URLs of the replicas, or replicas that the run starts and stops."""


class Supervisor:
    """Runs a pipeline to its end, attempt by attempt. The first one begins at `restore_from`.

    `store` holds the pipeline's state and `state` the record of its runs; the caller holds the store's lock.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        options: RunOptions,
        settings: Settings,
        watch: Watch,
        *,
        store: StateStore,
        state: RunState,
        restore_from: Location | None,
    ) -> None:
        self._spec = spec
        self._options = options
        self._settings = settings
        self._watch = watch
        self._store = store
        self._state = state
        self._run_id = uuid.uuid4().hex
        self._restore_from = restore_from
        self._fresh = options.fresh
        self._last = Snapshot(0.0, "CREATED")
        self._begun_s: float | None = None
        self._served: Served | None = None
        self._keeper: EngineSupervisor | ScaledEngine = EngineSupervisor(())
        self._printed: StdoutResults | None = None
        self._written: OutputCounts | None = None
        self._order: AttemptSpec | None = None
        self._tidy: CheckpointCleaner | None = None
        self._drain: Callable[[], None] = lambda: None
        self._failed_before = 0

    def to_the_end(self, enter: Callable[[], Engine], launcher: FlinkLauncher | None) -> Snapshot:
        """Make attempts until one reaches the pipeline's end; blocks. Returns the last snapshot.

        `enter` returns the engine, and is called once Kafka has what the job needs. Each attempt takes a
        process of `launcher`; without one there is a single attempt, in this process.
        """
        restarts = Restarts()
        try:
            last: Snapshot | None = None
            while last is None:
                try:
                    last = self._attempt(enter, launcher)
                except JobLost as lost:
                    if launcher is None:
                        raise
                    last = self._resume(lost, restarts)
        except KeyboardInterrupt:
            self._say(replace(self._last, state=INTERRUPTED))
            raise
        except ForebayError as error:
            if isinstance(error, ResultsLost):
                # The same command must not resume after the lost results as if nothing were missing.
                self._state = self._state.model_copy(update={"lost": str(error)})
                self._store.write(self._state)
            self._say(replace(self._last, state=FAILED, failure=str(error)))
            raise
        return self._finish(last)

    def _attempt(self, enter: Callable[[], Engine], launcher: FlinkLauncher | None) -> Snapshot:
        order = self._order = AttemptSpec(
            spec=self._spec,
            settings=self._settings,
            state=self._state,
            job_id=uuid.uuid4().hex,
            run_id=self._run_id,
            restore_from=self._restore_from,
            chosen=self._restore_from is not None and self._restore_from == self._options.from_checkpoint,
            fresh=self._fresh,
            cluster=self._options.cluster,
            file_systems=file_system_options(self._spec),
        )
        self._failed_before = self._last.failed_commits
        if launcher is None:
            return self._attempt_here(order, enter)
        self._printed = launcher.printed if isinstance(self._spec.sink, StdoutSink) else None
        process = launcher.take(
            connector_jars(self._spec, self._settings), planner=self._spec.event_time is not None
        )
        watched = _Watched(
            process,
            self._heard,
            self._mend,
            self._stall_detector(),
            served=lambda: self._keeper.serves,
            store=self._store,
        )
        self._drain = watched.process.drain
        self._store.report_renewals(process.confirm_lease)
        submitted = False
        try:
            watched.process.send(order)
            watched.until(Checked)
            watched.process.send(self._serve(enter))
            watched.until(Ready)
            watched.process.go()
            submitted = True
            return watched.until(Finished).snapshot
        except JobLost:
            raise
        except BaseException as error:
            if submitted and order.cluster is not None:
                # Nothing else ends it there. A run that has taken over runs another job.
                watched.process.cancel(CANCEL_S)
            elif submitted and not isinstance(error, Fenced):
                watched.process.cancel(EMBEDDED_CANCEL_S)
            raise
        finally:
            watched.process.kill()

    def _attempt_here(self, order: AttemptSpec, enter: Callable[[], Engine]) -> Snapshot:
        self._printed = StdoutResults() if isinstance(self._spec.sink, StdoutSink) else None
        jars = connector_jars(self._spec, self._settings)
        with self._printed.taken() if self._printed else nullcontext():
            start_jvm(self._settings.run / "flink", heap_mb=HEAP_MB, jars=jars)
        wishes = StopRequests()

        def drain() -> None:
            wishes.drain = True

        def heard(report: Report) -> None:
            self._mend()
            self._heard(report)

        self._drain = drain
        attempt = Attempt(order, heard, wishes)
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
                    self._spec,
                    engine,
                    lambda words, waited_s: self._watch(Snapshot(waited_s, WAITING, engine_failure=words)),
                )
            self._written = OutputCounts(self._spec, self._printed)
        return self._served

    def _heard(self, report: Report) -> None:
        match report:
            case AwaitsKafka(words, waited_s):
                waits = replace(self._last, state=AWAITS_KAFKA, engine_failure=words)
                self._watch(waits if self._begun_s else replace(waits, elapsed_s=waited_s))
            case ResumesEarlier(checkpoint, reason):
                assert self._order is not None
                self._restore_from = location_of(checkpoint)
                self._order = replace(self._order, restore_from=self._restore_from)
                words = f"{reason}; resuming from checkpoint {self._restore_from.name}"
                self._last = replace(self._last, resumes=(*self._last.resumes, reason), resuming=words)
                self._say(replace(self._last, state=RESUMING))
            case Skipped(gaps, records):
                skipped = self._last.skipped_records + records
                self._last = replace(self._last, gaps=(*self._last.gaps, *gaps), skipped_records=skipped)
                self._watch(self._last)
            case Ready():
                self._note(report)
            case NewTopics(ids):
                topics = self._state.topics | {topic: (id,) for topic, id in ids.items()}
                self._state = self._state.model_copy(update={"topics": topics})
                # If the location cannot be written now, they are recorded with the next checkpoint.
                with suppress(OSError, StoreAway, StoreRefused):
                    self._store.write(self._state, patient=False)
            case JobStatus():
                self._looked(report)
            case Lost(cause):
                raise JobLost(cause)
            case Failed(error, message):
                trouble = self._last.store_failure
                raise ERRORS.get(error, PipelineFailed)(
                    f"{message}. {trouble}. The same command resumes" if trouble else message
                )

    def _note(self, ready: Ready) -> None:
        """Record the job before its submission, so that it can be found after a kill at any moment."""
        order = self._order
        assert order is not None
        if self._fresh:
            self._state = forget(self._store, self._state)
        self._fresh = False
        at_end = order.restore_from is not None and self._is_at_end(job_of(order.restore_from))
        self._state = RunState(
            traits=fingerprint(self._spec),
            job=order.job_id,
            restored=None if order.restore_from is None else below(self._store.home, order.restore_from),
            restored_at_end=at_end,
            parallelism=self._spec.parallelism,
            jvm=ready.jvm,
            jvm_space=pid_space(),
            cluster=order.cluster,
            rest_port=ready.rest_port,
            ends=ready.ends,
            kafka=ready.kafka,
            topics=ready.topics,
        )
        self._store.write(self._state)
        self._tidy = CheckpointCleaner(self._store, order.job_id, order.restore_from)

    def _is_at_end(self, job: str) -> bool:
        return (job == self._state.job and self._state.restored_at_end) or self._store.has_finished(job)

    def _looked(self, look: JobStatus) -> None:
        assert self._tidy is not None
        self._state = self._tidy(self._state, look.signs.checkpoint_ms)
        self._keeper.heard(look.snapshot.backlog, runs=look.snapshot.state == "RUNNING")
        if self._printed is not None:
            self._printed.check()
        failed = self._failed_before + look.snapshot.failed_commits
        self._say(replace(look.snapshot, failed_commits=failed))
        if self._options.enough(self._last):
            self._drain()

    def _say(self, now: Snapshot) -> None:
        """Emit a snapshot, with the values kept across attempts."""
        if self._begun_s is None:
            self._begun_s = time.monotonic() - now.elapsed_s
        self._last = replace(
            now,
            elapsed_s=time.monotonic() - self._begun_s,
            engine_restarts=self._last.engine_restarts,
            engine_failure=self._last.engine_failure,
            resumes=self._last.resumes,
            resuming=self._last.resuming,
            scaling=self._last.scaling,
            store_failure=self._last.store_failure,
            gaps=self._last.gaps,
            skipped_records=self._last.skipped_records,
        )
        self._watch(self._last)

    def _mend(self) -> None:
        self._store.check_held()
        trouble = self._store.trouble()
        if trouble != self._last.store_failure:
            self._last = replace(self._last, store_failure=trouble)
            self._watch(self._last)
        self._keeper.mend(self._engine_said)
        if self._keeper.scaling != self._last.scaling:
            self._last = replace(self._last, scaling=self._keeper.scaling)
            self._watch(self._last)

    def _engine_said(self, words: str) -> None:
        self._last = replace(self._last, engine_restarts=self._keeper.failed, engine_failure=words)
        self._watch(self._last)

    def _stall_detector(self) -> JobStallDetector:
        return JobStallDetector(
            time.monotonic(),
            self._spec.deadline_s,
            embedded=self._options.cluster is None,
            task_managers=self._spec.task_managers,
        )

    def _resume(self, lost: JobLost, restarts: Restarts) -> Snapshot | None:
        """Prepare the next attempt, after a pause; return the last snapshot if none is needed.

        Raises `PipelineFailed` after too many attempts.
        """
        self._state = end_orphan(self._store, self._state)
        pause_s = restarts.grant(time.monotonic())
        if pause_s is None:
            raise PipelineFailed(
                f"{lost}; Flink was restarted {restarts.most} times within {restarts.within_s / 60:.0f} "
                f"minutes. The same command resumes"
            ) from None
        if not self._fresh:
            noted = self._order is not None and self._state.job == self._order.job_id
            if noted or self._options.from_checkpoint is None:
                try:
                    self._restore_from = checkpoint_to_resume(self._spec, self._store, self._state)
                except AlreadyFinished:
                    # Flink was lost between the job's end and the report of it.
                    return replace(self._last, state="FINISHED", in_flight=0, pending=0, oldest_read_ms=0)
        where = "the beginning" if self._restore_from is None else f"checkpoint {self._restore_from.name}"
        words = (
            f"{lost}; resuming from {where}, restart {restarts.recent} of at most {restarts.most} in "
            f"{restarts.within_s / 60:.0f} minutes"
        )
        self._last = replace(self._last, resumes=(*self._last.resumes, str(lost)), resuming=words)
        self._say(replace(self._last, state=RESUMING))
        time.sleep(pause_s)
        return None

    def _finish(self, last: Snapshot) -> Snapshot:
        # First: a run that is killed while counting has finished nevertheless.
        self._state = self._state.model_copy(update={"finished": True})
        self._store.write(self._state)
        assert self._order is not None
        notes = end_notes(self._store, self._order.job_id)
        self._store.delete(self._order.job_id, at_once=False)
        assert self._written is not None
        self._say(replace(self._written.since(last, notes), failed_commits=self._last.failed_commits))
        return self._last


class _Watched:
    def __init__(
        self,
        process: FlinkProcess,
        heard: Callable[[Report], None],
        tick: Callable[[], None],
        stall_detector: JobStallDetector,
        *,
        served: Callable[[], bool],
        store: StateStore,
    ) -> None:
        self.process = process
        self._heard = heard
        self._tick = tick
        self._stall_detector = stall_detector
        self._served = served
        self._store = store

    def until(self, kind: type[R]) -> R:
        """Return the first report of `kind`; blocks. Raises `JobLost` if the attempt stalls."""
        while True:
            report = self.process.receive(TICK_S)
            self._tick()
            if report is not None:
                self._heard(report)
                look = report if isinstance(report, JobStatus) else None
                self._stall_detector.heard(time.monotonic(), look, served=self._served())
                if isinstance(report, kind):
                    return report
            if uptime_s() >= self._store.held_until_s():
                # The lease guard has suspended Flink.
                self._stall_detector.excuse(time.monotonic())
            stalled = self._stall_detector.stalled(time.monotonic())
            if stalled is not None:
                raise JobLost(f"{stalled}; it is considered lost")
