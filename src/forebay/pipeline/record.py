"""Keeps the record of a run while it runs, and deletes the checkpoints that it replaces."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from forebay.clients.s3.client import StoreAway, StoreRefused
from forebay.clients.s3.location import Location, below
from forebay.errors import ResultsLost
from forebay.flink.checkpoints import job_of
from forebay.pipeline.messages import Ready
from forebay.pipeline.plan import resolved
from forebay.pipeline.resume import end_orphan, fingerprint
from forebay.pipeline.run_state import Completed, RunState
from forebay.pipeline.state_store import StateStore, newest_of
from forebay.processes import pid_space

if TYPE_CHECKING:
    from forebay.pipeline.attempt import AttemptSpec


class RunRecord:
    """The record of a run in its `store`, which starts as the last run's `state`."""

    def __init__(self, store: StateStore, state: RunState) -> None:
        self.state = state
        self._store = store
        self._cleaner: CheckpointCleaner | None = None

    def begin(self, attempt: AttemptSpec, ready: Ready) -> None:
        """Record the job before its submission, so that it can be found after a kill at any moment."""
        spec, restored = attempt.plan.spec, attempt.restore_from
        if attempt.fresh:
            self.state = forget(self._store, self.state)
        self.state = RunState(
            traits=fingerprint(spec),
            settings=resolved(spec, attempt.plan.engine),
            job=attempt.job_id,
            restored=None if restored is None else below(self._store.home, restored),
            restored_at_end=restored is not None and self._is_at_end(job_of(restored)),
            parallelism=spec.parallelism,
            jvm=ready.jvm,
            jvm_space=pid_space(),
            cluster=attempt.plan.cluster,
            rest_port=ready.rest_port,
            ends=ready.ends,
            kafka=ready.kafka,
            topics=ready.topics,
        )
        self._store.write(self.state)
        self._cleaner = CheckpointCleaner(self._store, attempt.job_id, restored)

    def _is_at_end(self, job: str) -> bool:
        return (job == self.state.job and self.state.restored_at_end) or self._store.has_finished(job)

    def add_topics(self, ids: Mapping[str, str]) -> None:
        topics = self.state.topics | {topic: (id,) for topic, id in ids.items()}
        self.state = self.state.model_copy(update={"topics": topics})
        # If the location cannot be written now, they are recorded with the next checkpoint.
        with suppress(OSError, StoreAway, StoreRefused):
            self._store.write(self.state, patient=False)

    def add_checkpoint(self, triggered_ms: int) -> None:
        """Record the job's newest checkpoint, triggered by `triggered_ms` at the latest."""
        assert self._cleaner is not None
        self.state = self._cleaner(self.state, triggered_ms)

    def add_loss(self, lost: ResultsLost) -> None:
        """The same command must not resume after lost results as if nothing were missing."""
        self.state = self.state.model_copy(update={"lost": str(lost)})
        self._store.write(self.state)

    def end_orphan(self) -> None:
        """End everything that the lost attempt left. Raises as `resume.end_orphan`."""
        self.state = end_orphan(self._store, self.state)

    def finish(self) -> None:
        self.state = self.state.model_copy(update={"finished": True})
        self._store.write(self.state)


def forget(store: StateStore, before: RunState) -> RunState:
    """Delete the checkpoints; return the new record, which is written first so that a crash cannot bring them
    back.
    """
    state = RunState(topics=before.topics)
    store.write(state)
    for job in store.jobs():
        store.delete(job)
    return state


class CheckpointCleaner:
    """Records the checkpoints that `job` completes, and deletes those of earlier jobs in `store`.

    Keeps `restored`: Flink deletes a finishing job's checkpoints, and a run killed before recording the end
    resumes from `restored` again. Flink does not claim what it restores, so jobs share no files.
    """

    def __init__(self, store: StateStore, job: str, restored: Location | None) -> None:
        self._store = store
        self._job = job
        self._kept = {job} if restored is None else {job, job_of(restored)}
        self._noted = -1
        self._noted_ms = 0
        self._tidied = False

    def __call__(self, state: RunState, triggered_ms: int = 0) -> RunState:
        """Look for a newer checkpoint, triggered by `triggered_ms` at the latest; return the updated record.

        If the disk is full, or the store does not answer or refuses, the record stays unchanged until a later
        look.
        """
        if self._store.remote and triggered_ms <= self._noted_ms:
            return state
        try:
            newest = newest_of(self._store, self._job)
            if newest is None or newest.number <= self._noted:
                return state
            there = self._store.contents(newest.path)
        except (StoreAway, StoreRefused):
            return state
        completed = Completed(
            number=newest.number, triggered_ms=triggered_ms, files=there.files, bytes=there.bytes
        )
        noted = state.model_copy(update={"completed": completed})
        with suppress(OSError, StoreAway, StoreRefused):
            self._store.write(noted, patient=False)
            self._noted, self._noted_ms = newest.number, triggered_ms
            self._tidy()
            return noted
        return state

    def _tidy(self) -> None:
        if not self._tidied:
            self._tidied = True
            with suppress(StoreAway, StoreRefused):
                for job in self._store.jobs():
                    if job not in self._kept:
                        self._store.delete(job, at_once=False)
