"""What a pipeline's runs leave for the next one: checkpoints and the last run's record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from forebay.clients.s3.client import StoreAway, StoreRefused
from forebay.clients.s3.location import Location, below, location_of, within
from forebay.errors import LaunchError, PipelineFailed, ResultsLost, SettingError
from forebay.flink.checkpoints import Checkpoint, job_of
from forebay.flink.job import end_job
from forebay.flink.rest import FlinkRest
from forebay.pages.units import moment
from forebay.pipeline.fingerprint import check_fingerprint, check_name, traits_to_record
from forebay.pipeline.messages import Ready
from forebay.pipeline.plan import resolved
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import (
    FILE,
    Completed,
    RunRecordBroken,
    RunState,
    StateStore,
    newest_of,
    number_of,
)
from forebay.processes import is_same, kill, pid_space, wait_gone

if TYPE_CHECKING:
    from forebay.pipeline.messages import AttemptSpec

ORPHAN_S = 30.0
KEPT_LOGS = 20
SHOWN_CHANGES, CHANGE_CHARS = 5, 40
FIXES = (
    "resume with --from-checkpoint CHECKPOINT (results committed after it will be duplicated), "
    "or start over with --fresh"
)


class AlreadyFinished(SettingError):
    pass


def found_state(store: StateStore, *, needed: bool = True) -> RunState:
    """Return the record of runs in `store`; a new one before the first run, or if it is not `needed`.

    Raises `SettingError` if it cannot be used, or is missing although there are checkpoints.
    """
    try:
        state = store.read()
    except RunRecordBroken as error:
        if not needed:
            return RunState()
        raise SettingError(
            f"{error}. --fresh starts over (first stop any job of it that runs on a cluster)"
        ) from None
    if state is None and needed and any(newest_of(store, job) for job in store.jobs()):
        raise SettingError(
            f"{store.home} holds checkpoints but lacks {FILE}, which records what was committed: it was "
            f"copied in part, or that file was removed. Restore the file, {FIXES}"
        )
    return state or RunState()


def end_orphan(store: StateStore, state: RunState) -> RunState:
    """End everything that the last run left. Returns its record, updated if its job had finished.

    Otherwise a killed command's job could commit results that the next run repeats. Raises `SettingError` if
    another cluster does not answer.
    """
    if state.finished:
        return state
    if state.jvm and state.jvm_space == pid_space() and is_same(*state.jvm):
        with suppress(psutil.NoSuchProcess):
            orphan = {psutil.Process(state.jvm[0])}
            kill(orphan)
            if wait_gone(orphan, ORPHAN_S):
                raise PipelineFailed(f"the JVM of an earlier run (process {state.jvm[0]}) cannot be ended")
    # Without a record, as with --fresh if it is unreadable, any of the jobs may have been the last.
    store.fence(state.job, 0 if state.job is None else _last_number(store, state))
    if state.cluster is None or state.job is None:
        return state
    try:
        end = end_job(FlinkRest(f"http://{state.cluster}"), state.job, ORPHAN_S)
    except LaunchError as error:
        raise SettingError(
            f"the last run is job {state.job} on a cluster that does not answer ({error}); "
            f'make sure that it has ended, and write "cluster": null into {store.home / FILE}'
        ) from None
    if end == "FINISHED":
        state = state.model_copy(update={"finished": True})
        store.write(state)
    return state


def _last_number(store: StateStore, state: RunState) -> int:
    if state.completed is not None:
        return state.completed.number
    if state.restored is None:
        return 0
    with suppress(FileNotFoundError, SettingError):
        return number_of(within(store.home, state.restored))
    return 0


def checkpoint_to_resume(spec: PipelineSpec, store: StateStore, state: RunState) -> Location | None:
    """Return the checkpoint that a run of `spec` resumes, or None to start at the beginning.

    It is the last job's newest, or the one that this job started from. A damaged or missing one is never
    replaced by an older one, which would duplicate results. Raises `SettingError` for that, for lost results,
    a finished pipeline, and changed settings.
    """
    check_name(spec, store.home, state)
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
            raise SettingError(f"checkpoint {checkpoint} is missing. Restore it, {FIXES}") from None
        except SettingError as error:
            raise SettingError(f"{error}. Restore checkpoint {checkpoint.name}, {FIXES}") from None
        check_fingerprint(spec, state)
    return checkpoint


def resume_text(checkpoint: Location, state: RunState, settings: Mapping[str, Any]) -> str:
    changes = list(_changes(state.settings, settings)) if state.settings else []
    texts = [text if number < SHOWN_CHANGES else key for number, (key, text) in enumerate(changes)]
    since = f"; changed since the last run: {', '.join(texts)}" if changes else ""
    taken_ms = 0 if state.completed is None else state.completed.triggered_ms
    taken = f" of {moment(taken_ms)} UTC" if taken_ms else ""
    return f"resuming from checkpoint {checkpoint.name}{taken}{since}"


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Each with the path of its key; values only if they are short."""
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, new, f"{path}{key}.")
        elif old != new:
            texts = [each if isinstance(each, str) else json.dumps(each) for each in (old, new)]
            short = all(len(text) <= CHANGE_CHARS and "\n" not in text for text in texts)
            yield f"{path}{key}", f"{path}{key} {texts[0]} → {texts[1]}" if short else f"{path}{key}"


def _restored(store: StateStore, state: RunState) -> Location | None:
    if state.job is not None and state.completed is not None and not state.restored_at_end:
        raise SettingError(
            f"{store.home} lacks the checkpoints of job {state.job}, which completed some: it was copied "
            f"in part. Restore them, {FIXES}"
        )
    return None if state.restored is None else within(store.home, state.restored)


def _whole(store: StateStore, newest: Checkpoint[Location], completed: Completed | None) -> Location:
    if completed is not None and newest.number < completed.number:
        raise SettingError(
            f"checkpoint {completed.number} of job {job_of(newest.path)} is missing; the newest one found "
            f"is {newest.path}. Restore it, {FIXES}"
        )
    if completed is not None and newest.number == completed.number:
        there = store.contents(newest.path)
        if there.files < completed.files or there.bytes < completed.bytes:
            raise SettingError(
                f"checkpoint {newest.path} is incomplete: {there.files} of {completed.files} files and "
                f"{there.bytes} of {completed.bytes} bytes were found. Restore it, {FIXES}"
            )
    return newest.path


def result_folders(spec: PipelineSpec) -> list[Path]:
    places = map(location_of, spec.directories().values())
    return [place for place in places if isinstance(place, Path)]


def earlier_folders(spec: PipelineSpec, state: RunState) -> list[Path]:
    """The folders of results of earlier runs that still exist."""
    now = result_folders(spec)
    return [path for path in map(Path, state.folders) if path not in now and _may_exist(path)]


def _may_exist(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return True  # A network file system may fail for a moment.


def clean_logs(folder: Path) -> None:
    with suppress(FileNotFoundError):
        logs = sorted(folder.glob("flink-*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in logs[KEPT_LOGS:]:
            path.unlink()


class RunRecord:
    def __init__(self, store: StateStore, state: RunState) -> None:
        self.state = state
        self._store = store
        self._cleaner: CheckpointCleaner | None = None

    def begin(self, attempt: AttemptSpec, ready: Ready) -> None:
        """Call it before the submission, so that the job can be found after a kill at any moment."""
        spec, restored = attempt.plan.spec, attempt.restore_from
        if attempt.fresh:
            self.state = forget(self._store, self.state)
        self.state = RunState(
            traits=traits_to_record(spec, self.state if restored is not None else RunState()),
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
            kafka=ready.kafka.get("source"),
            sink_kafka={
                key: ready.kafka[key]
                for key, sink in spec.topics().items()
                if sink.guarantee == "exactly-once" and key in ready.kafka
            },
            topics=ready.topics,
            folders=tuple(map(str, (*result_folders(spec), *earlier_folders(spec, self.state)))),
        )
        self._write()
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
        assert self._cleaner is not None
        self.state = self._cleaner(self.state, triggered_ms)

    def add_loss(self, lost: ResultsLost) -> None:
        self.state = self.state.model_copy(update={"lost": str(lost)})
        self._write()

    def end_orphan(self) -> None:
        self.state = end_orphan(self._store, self.state)

    def finish(self) -> None:
        self.state = self.state.model_copy(update={"finished": True})
        self._write()

    def _write(self) -> None:
        try:
            self._store.write(self.state)
        except OSError as error:
            raise PipelineFailed(
                f"{self._store.home / FILE}, the record of this pipeline's runs, cannot be written: "
                f"{error.strerror}. Fix that, and run the same command again"
            ) from None


def forget(store: StateStore, before: RunState) -> RunState:
    """Delete the checkpoints. Returns the new record, written first so that a crash cannot restore them."""
    state = RunState(topics=before.topics)
    store.write(state)
    for job in store.jobs():
        store.delete(job)
    return state


class CheckpointCleaner:
    """Records the checkpoints that `job` completes, and deletes those of earlier jobs.

    It keeps `restored`: Flink deletes a finishing job's checkpoints, and a run killed before recording the
    end resumes from it again.
    """

    def __init__(self, store: StateStore, job: str, restored: Location | None) -> None:
        self._store = store
        self._job = job
        self._kept = {job} if restored is None else {job, job_of(restored)}
        self._noted = -1
        self._noted_ms = 0
        self._tidied = False

    def __call__(self, state: RunState, triggered_ms: int) -> RunState:
        """Return the new record; unchanged without a newer checkpoint, or if the store is full or
        unavailable.
        """
        if triggered_ms == self._noted_ms:
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
