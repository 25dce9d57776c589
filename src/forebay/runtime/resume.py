"""What the runs of a pipeline leave for the next one: a lock, the record of the last run, and checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from forebay.config.spec import PipelineSpec
from forebay.errors import LaunchError, PipelineFailed, SettingError
from forebay.flink.checkpoints import Checkpoint, job_of
from forebay.flink.job import end_job
from forebay.flink.rest import FlinkRest
from forebay.processes import is_same, kill, pid_space, wait_gone
from forebay.runtime.run_state import FILE, Completed, RunRecordBroken, RunState
from forebay.runtime.state_store import StateStore, newest_of, number_of
from forebay.s3.client import StoreAway, StoreRefused
from forebay.s3.location import Location, within

ORPHAN_S = 30.0
KEPT_LOGS = 20
MENDS = (
    "name the checkpoint to resume from with --from-checkpoint (what was committed after it comes again), "
    "or start over with --fresh"
)


class AlreadyFinished(SettingError):
    """The pipeline has finished, and is not run again by mistake."""


def found_state(store: StateStore, *, needed: bool = True) -> RunState:
    """The record of the runs in `store`; a new one before the first run, or where it is not `needed`.

    Raises `SettingError` where it cannot be used, or is missing though there are checkpoints.
    """
    try:
        state = store.read()
    except RunRecordBroken as error:
        if not needed:
            return RunState()
        raise SettingError(
            f"{error}; or start over with --fresh (a job of it that runs on a cluster has to be ended first)"
        ) from None
    if state is None and needed and any(newest_of(store, job) for job in store.jobs()):
        raise SettingError(
            f"{store.home} holds checkpoints and no {FILE}, which says what was committed: it was copied in "
            f"part, or that file was removed. Bring it back, {MENDS}"
        )
    return state or RunState()


def end_orphan(store: StateStore, state: RunState) -> RunState:
    """Make sure that nothing of the last run goes on; returns its record, with its end where it came to one.

    What a killed command leaves behind would complete a checkpoint or commit results that the next run gives
    again. An embedded cluster ends by itself, only not at once; a job on a cluster does not. Raises
    `SettingError` where that cluster does not answer.
    """
    if state.finished:
        return state
    if state.jvm and state.jvm_space == pid_space() and is_same(*state.jvm):
        _end_process(state.jvm[0])
    # Without a record, as with --fresh if it cannot be read, any of the jobs may have been the last.
    store.fence(state.job, 0 if state.job is None else _last_number(store, state))
    if state.cluster is None or state.job is None:
        return state
    try:
        end = end_job(FlinkRest(f"http://{state.cluster}"), state.job, ORPHAN_S)
    except LaunchError as error:
        raise SettingError(
            f"the last run is job {state.job} on a cluster that does not answer ({error}); "
            f'make sure that it has, and write "cluster": null into {store.home / FILE}'
        ) from None
    if end == "FINISHED":
        state = state.model_copy(update={"finished": True})
        store.write(state)
    return state


def _last_number(store: StateStore, state: RunState) -> int:
    """The number from which the last job counts on, as far as the record knows: Flink goes on with that of
    the checkpoint that a job was started from."""
    if state.completed is not None:
        return state.completed.number
    if state.restored is None:
        return 0
    with suppress(FileNotFoundError, SettingError):
        return number_of(within(store.home, state.restored))
    return 0


def _end_process(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        orphan = {psutil.Process(pid)}
        kill(orphan)
        if wait_gone(orphan, ORPHAN_S):
            raise PipelineFailed(f"the JVM of an earlier run (process {pid}) cannot be ended")


def checkpoint_to_resume(spec: PipelineSpec, store: StateStore, state: RunState) -> Location | None:
    """The checkpoint that a run of `spec` goes on from; None: it starts at the beginning.

    That is the newest of the last job, or what that job was started from, where it has none. No older one
    stands in for one that is damaged or missing: what was committed since would be given again. Raises
    `SettingError` then, where the last run lost results, where the pipeline has finished, and where its state
    was made with other settings or with Python in worker processes.
    """
    if state.lost is not None:
        raise SettingError(f"the last run of pipeline {spec.name!r} lost results. {state.lost}")
    found = None if state.job is None else newest_of(store, state.job)
    if state.finished or (found is None and state.job is not None and store.has_finished(state.job)):
        raise AlreadyFinished(
            f"pipeline {spec.name!r} has finished: its results are in the sink. Run it again from the "
            f"beginning with --fresh"
        )
    checkpoint = _restored(store, state) if found is None else _whole(store, found, state.completed)
    if checkpoint is not None:
        try:
            number_of(checkpoint)
        except FileNotFoundError:
            raise SettingError(f"checkpoint {checkpoint} is missing. Bring it back, {MENDS}") from None
        except SettingError as error:
            raise SettingError(f"{error}. Bring checkpoint {checkpoint.name} back, {MENDS}") from None
        check_fingerprint(spec, state)
    return checkpoint


def check_fingerprint(spec: PipelineSpec, state: RunState) -> None:
    """Raise `SettingError` where the state of the last run was made with settings that `spec` has not, with
    Python in worker processes, or by a version that pickled."""
    if state.traits is not None and state.traits.get("mode", "thread") != "thread":
        raise SettingError(
            "the checkpoint was made with `mode: process`, whose state cannot be read any more: Python runs "
            "inside Flink's JVM now. Finish the run with the version of Forebay that began it, or start over "
            "with --fresh"
        )
    if state.traits is None:
        return
    if "state" not in state.traits:
        raise SettingError(
            "the checkpoint was made by a version of Forebay that kept state as Python pickles, and reading "
            "those can run code: finish the run with that version, or start over with --fresh"
        )
    check_order(spec, state.traits)
    for key, value in fingerprint(spec).items():
        if key in state.traits and value != state.traits[key] and key not in unfingerprinted(spec):
            raise SettingError(
                f"{key}: expected {state.traits[key]}, as in the checkpoint, found {value}; its state "
                f"does not fit (--fresh starts over)"
            )


def check_order(spec: PipelineSpec, noted: Mapping[str, Any]) -> None:
    """Raise `SettingError` where the events of a key have to keep their order and it is not known how those
    in flight are spread: earlier versions noted the shards only where order mattered."""
    if spec.ordering == "key" and "shards" not in noted:
        raise SettingError(
            "ordering: expected unordered, as in the checkpoint, found key; the checkpoint does not say how "
            "many shards it was made with. Resume once with `ordering: unordered` and the shards of that "
            "run, or start over with --fresh"
        )


def unfingerprinted(spec: PipelineSpec) -> set[str]:
    """Those of `fingerprint` that are noted for the runs to come and may change in this one."""
    bound = spec.ordering == "key" or spec.application is not None
    return {"ordering"} if bound else {"ordering", "shards"}


def _restored(store: StateStore, state: RunState) -> Location | None:
    """What the last job was started from, where it left no checkpoint of its own."""
    if state.job is not None and state.completed is not None and not state.restored_at_end:
        raise SettingError(
            f"{store.home} lacks the checkpoints of job {state.job}, which has completed some: it was copied "
            f"in part. Bring them back, {MENDS}"
        )
    if state.version == 1:
        return store.newest_of_all()
    return None if state.restored is None else within(store.home, state.restored)


def _whole(store: StateStore, newest: Checkpoint[Location], completed: Completed | None) -> Location:
    """The newest checkpoint of the last job, held against what was seen of it when it was completed."""
    if completed is not None and newest.number < completed.number:
        raise SettingError(
            f"checkpoint {completed.number} of job {job_of(newest.path)} is missing; the newest that is "
            f"there is {newest.path}. Bring it back, {MENDS}"
        )
    if completed is not None and newest.number == completed.number:
        there = store.contents(newest.path)
        if there.files < completed.files or there.bytes < completed.bytes:
            raise SettingError(
                f"checkpoint {newest.path} is not whole: {there.files} of {completed.files} files and "
                f"{there.bytes} of {completed.bytes} bytes are there. Bring it back, {MENDS}"
            )
    return newest.path


def check_same_kafka(noted: str | None, kafka: str | None) -> None:
    """Raises `SettingError` where a checkpoint has offsets of another Kafka (`noted`) than the one that is
    read now: addresses may change, offsets mean nothing elsewhere."""
    if None not in (noted, kafka) and noted != kafka:
        raise SettingError(
            f"source.bootstrap: the checkpoint holds offsets of Kafka cluster {noted}, "
            f"this one is {kafka}; --fresh starts over"
        )


def forget(store: StateStore, before: RunState) -> RunState:
    """Delete the checkpoints; returns the new record. A crash in between must not bring them back."""
    state = RunState(topics=before.topics)
    store.write(state)
    for job in store.jobs():
        store.delete(job)
    return state


class CheckpointCleaner:
    """Notes the checkpoints that `job` completes, and deletes what a pipeline's earlier jobs left in `store`.

    `restored`, which the run resumed from, stays: Flink deletes a job's own checkpoints when it finishes, and
    a run that is killed before it could note that has its place there. A checkpoint needs no file of another
    job: Flink does not claim what it restores.
    """

    def __init__(self, store: StateStore, job: str, restored: Location | None) -> None:
        self._store = store
        self._job = job
        self._kept = {job} if restored is None else {job, job_of(restored)}
        self._noted = -1
        self._noted_ms = 0
        self._tidied = False

    def __call__(self, state: RunState, triggered_ms: int = 0) -> RunState:
        """Look for a newer checkpoint, triggered at `triggered_ms` at the latest; returns the record of it.

        A disk that is full, or a store that does not answer or refuses, leaves the record as it was, until a
        later look.
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


def clean_logs(folder: Path) -> None:
    """Delete all but the newest `KEPT_LOGS` files of Flink's logs in `folder`, if it is there."""
    with suppress(FileNotFoundError):
        logs = sorted(folder.glob("flink-*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in logs[KEPT_LOGS:]:
            path.unlink()


def fingerprint(spec: PipelineSpec) -> dict[str, Any]:
    """The settings that a checkpoint is bound to, but for its `unfingerprinted`.

    State of worker processes, which older versions had (`mode`), cannot be read, nor what they pickled, of
    which a record says nothing (`state`); order within a key, and what
    an application keeps for it, live as long as the number of shards; positions are those of one source, and
    state is found again by the form of the job.
    """
    application = {} if spec.application is None else spec.application.fingerprint()
    return {
        "mode": "thread",
        "state": "bytes",
        "ordering": spec.ordering,
        "shards": spec.shards,
        "event_time": "set" if spec.event_time else "null",
        "source.replay": "set" if getattr(spec.source, "replay", None) else "null",
        **_below("source", spec.source.fingerprint()),
        **_below("sink", spec.sink.fingerprint()),
        **_below("application", application),
        "application.type": "null" if spec.application is None else spec.application.type,
    }


def _below(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by their paths; in place of an address its hash, for it may hold secrets."""
    return {f"{key}.{name}": _hash(value) if name == "url" else value for name, value in values.items()}


def _hash(url: object) -> str:
    return "one with the hash " + hashlib.blake2b(str(url).encode(), digest_size=8).hexdigest()
