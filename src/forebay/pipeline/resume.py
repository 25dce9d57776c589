"""What a pipeline's runs leave for the next one: the record of the last run, and checkpoints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from forebay.clients.s3.location import Location, within
from forebay.errors import LaunchError, PipelineFailed, SettingError
from forebay.flink.checkpoints import Checkpoint, job_of
from forebay.flink.job import end_job
from forebay.flink.rest import FlinkRest
from forebay.pages.units import moment
from forebay.pipeline.run_state import FILE, Completed, RunRecordBroken, RunState
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import StateStore, newest_of, number_of
from forebay.processes import is_same, kill, pid_space, wait_gone

ORPHAN_S = 30.0
KEPT_LOGS = 20
SHOWN_CHANGES, CHANGE_CHARS = 5, 40
MENDS = (
    "resume with --from-checkpoint CHECKPOINT (results committed after it will be duplicated), "
    "or start over with --fresh"
)


class AlreadyFinished(SettingError):
    """The pipeline has finished, and must not run again by mistake."""


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
            f"copied in part, or that file was removed. Restore the file, {MENDS}"
        )
    return state or RunState()


def end_orphan(store: StateStore, state: RunState) -> RunState:
    """End everything that the last run left; return its record, updated if its job had finished.

    A killed command's job could otherwise commit results that the next run repeats. An embedded cluster ends
    by itself, with a delay; a job on a cluster does not. Raises `SettingError` if that cluster does not
    answer.
    """
    if state.finished:
        return state
    if state.jvm and state.jvm_space == pid_space() and is_same(*state.jvm):
        _end_process(state.jvm[0])
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
    """The checkpoint number from which the last job counts, as far as recorded: Flink continues the restored
    checkpoint's numbers.
    """
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
    """Return the checkpoint that a run of `spec` resumes, or None to start at the beginning.

    It is the last job's newest, or the one which that job started from. A damaged or missing one is never
    replaced by an older one, which would duplicate results: that raises `SettingError`, as do lost results, a
    finished pipeline, and changed settings.
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
            raise SettingError(f"checkpoint {checkpoint} is missing. Restore it, {MENDS}") from None
        except SettingError as error:
            raise SettingError(f"{error}. Restore checkpoint {checkpoint.name}, {MENDS}") from None
        check_fingerprint(spec, state)
    return checkpoint


def check_fingerprint(spec: PipelineSpec, state: RunState) -> None:
    """Raise `SettingError` if the last run's state was made with other settings than those of `spec`."""
    if state.traits is None:
        return
    for key, value in fingerprint(spec).items():
        if key in state.traits and value != state.traits[key] and key not in unfingerprinted(spec):
            raise SettingError(
                f"{key}: expected {state.traits[key]}, as in the checkpoint, found {value}; the checkpoint "
                f"cannot be resumed with it (--fresh starts over)"
            )


def resume_words(checkpoint: Location, state: RunState, settings: Mapping[str, Any]) -> str:
    """From which checkpoint a run with `settings` resumes the last run, and which settings are others."""
    changes = list(_changes(state.settings, settings)) if state.settings else []
    more = f", and {len(changes) - SHOWN_CHANGES} more" if len(changes) > SHOWN_CHANGES else ""
    since = f"; changed since the last run: {', '.join(changes[:SHOWN_CHANGES])}{more}" if changes else ""
    taken_ms = 0 if state.completed is None else state.completed.triggered_ms
    taken = f" of {moment(taken_ms)} UTC" if taken_ms else ""
    return f"resuming from checkpoint {checkpoint.name}{taken}{since}"


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, new, f"{path}{key}.")
        elif old != new:
            texts = [each if isinstance(each, str) else json.dumps(each) for each in (old, new)]
            short = all(len(text) <= CHANGE_CHARS and "\n" not in text for text in texts)
            yield f"{path}{key} {texts[0]} → {texts[1]}" if short else f"{path}{key}"


def unfingerprinted(spec: PipelineSpec) -> set[str]:
    """The settings in `fingerprint` that are recorded for later runs but may change in this one."""
    bound = spec.ordering == "key" or spec.application is not None
    return {"ordering"} if bound else {"ordering", "shards"}


def _restored(store: StateStore, state: RunState) -> Location | None:
    """The checkpoint that the last job started from, if it left none of its own."""
    if state.job is not None and state.completed is not None and not state.restored_at_end:
        raise SettingError(
            f"{store.home} lacks the checkpoints of job {state.job}, which completed some: it was copied "
            f"in part. Restore them, {MENDS}"
        )
    return None if state.restored is None else within(store.home, state.restored)


def _whole(store: StateStore, newest: Checkpoint[Location], completed: Completed | None) -> Location:
    """The last job's newest checkpoint, compared with its size when it completed."""
    if completed is not None and newest.number < completed.number:
        raise SettingError(
            f"checkpoint {completed.number} of job {job_of(newest.path)} is missing; the newest one found "
            f"is {newest.path}. Restore it, {MENDS}"
        )
    if completed is not None and newest.number == completed.number:
        there = store.contents(newest.path)
        if there.files < completed.files or there.bytes < completed.bytes:
            raise SettingError(
                f"checkpoint {newest.path} is incomplete: {there.files} of {completed.files} files and "
                f"{there.bytes} of {completed.bytes} bytes were found. Restore it, {MENDS}"
            )
    return newest.path


def check_same_kafka(noted: str | None, kafka: str | None) -> None:
    """Raise `SettingError` if a checkpoint's offsets are of another Kafka. Addresses may change; offsets
    belong to one cluster.
    """
    if None not in (noted, kafka) and noted != kafka:
        raise SettingError(
            f"source.bootstrap: the checkpoint holds offsets of Kafka cluster {noted}, "
            f"this one is {kafka}; --fresh starts over"
        )


def clean_logs(folder: Path) -> None:
    with suppress(FileNotFoundError):
        logs = sorted(folder.glob("flink-*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in logs[KEPT_LOGS:]:
            path.unlink()


def fingerprint(spec: PipelineSpec) -> dict[str, Any]:
    """The settings that must not change when a job resumes, and its `unfingerprinted`.

    Order within a key and an application's state depend on the number of shards, offsets on the source; Flink
    finds state by the shape of the job.
    """
    application = {} if spec.application is None else spec.application.fingerprint()
    return {
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
    """URLs are replaced by their hashes because they may contain secrets."""
    return {f"{key}.{name}": _hash(value) if name == "url" else value for name, value in values.items()}


def _hash(url: object) -> str:
    return "one with the hash " + hashlib.blake2b(str(url).encode(), digest_size=8).hexdigest()
