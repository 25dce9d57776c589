"""Flink for a program, and its directory of checkpoints: lock, resume, clean up."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pyflink.datastream import StreamExecutionEnvironment

from forebay.api.execution import ProgramEnvironment
from forebay.connectors.jars import installed_jars
from forebay.errors import LaunchError, SettingError
from forebay.files import try_lock
from forebay.flink import checkpoints as flink_checkpoints
from forebay.flink.checkpoints import END_MARK, LOCK, METADATA, checkpoints_of, jobs_in
from forebay.flink.environment import FlinkConfig, Restart, flink_environment
from forebay.flink.job import ENDED
from forebay.flink.jvm import HEAP_MB
from forebay.flink.rest import FlinkRest
from forebay.settings import load_settings


def environment(
    *,
    checkpoints: str | Path | None = None,
    every_s: float = 5.0,
    resume: bool = True,
    parallelism: int = 1,
    cluster: str | None = None,
    heap_mb: int = HEAP_MB,
    log_every_s: float | None = 10.0,
    options: Mapping[str, str] | None = None,
) -> StreamExecutionEnvironment:
    """A PyFlink environment with the options that Forebay's operators need: Python inside Flink's JVM, no
    waiting for full buffers, unaligned checkpoints.

    Flink runs inside this process, or on a cluster. The first call in a process starts a JVM and blocks for
    some seconds; a process has one JVM, so the first environment sets its heap and its connectors. Connectors
    installed with `forebay connectors install` are on its class path.

    An environment of your own works too: set `python.execution-mode` to `thread`.

    Args:
        checkpoints: Directory for checkpoints, for this program alone; None: no checkpoints. It is locked
            until the process ends: a second copy of the program raises `SettingError`.
        every_s: Seconds between checkpoints.
        resume: Resume from the newest checkpoint in `checkpoints`, if there is one; after a kill, just start
            the same program again. Deletes files of earlier jobs, but not with `cluster`. If the last job has
            finished, the next one starts from the beginning, with a warning.
        parallelism: Default number of subtasks of an operator.
        cluster: `HOST:PORT` of a Flink cluster's REST service; None: inside this process.
        heap_mb: Maximum heap of the JVM in this process, in MiB.
        log_every_s: Seconds between log lines of `env.execute` that count events in, results and dead letters
            out, and calls in flight; None: never.
        options: Flink options. They take precedence.

    A job that fails restarts from its newest checkpoint, ten times, after pauses that grow from 0.1 to 30 s;
    ten quiet minutes reset the count. When the job has failed, `env.execute` raises
    `forebay.errors.PipelineFailed` with the cause; Ctrl-C cancels the job. The logger `forebay` logs
    restarts, and operators all of whose events become dead letters, at `WARNING`; at `INFO`, the checkpoint
    that the job resumes from, when it runs, and its counts.

    Raises `SettingError` for a wrong argument, for a directory that another process uses, and if a job with
    its checkpoints there still runs on the cluster; `LaunchError` if the JVM does not start.

    >>> env = fb.environment(checkpoints="state/topics", every_s=10)
    >>> env.get_parallelism()
    1
    """
    if checkpoints is not None and not isinstance(checkpoints, str | Path):
        found = type(checkpoints).__name__
        raise SettingError(f"checkpoints: expected the path of a directory, found a value of type {found}")
    if not every_s > 0:
        raise SettingError(f"every_s: expected a number of seconds above 0, found {every_s}")
    if log_every_s is not None and not log_every_s > 0:
        raise SettingError(f"log_every_s: expected a number of seconds above 0, or None, found {log_every_s}")
    folder = None if checkpoints is None else Path(checkpoints)
    # A folder on the cluster's machines cannot be checked here.
    first = folder is not None and (cluster is None or folder.is_dir()) and hold_folder(folder)
    if folder is not None and cluster is not None and folder.is_dir():
        check_none_runs(cluster, folder)
    if folder is not None and cluster is None:
        # A job that this process has started before may still run.
        forget_finished(folder, start_over=resume and first)
    restored = resumed_checkpoint(folder) if folder is not None and resume else None
    if folder is not None and restored is not None and first and cluster is None:
        delete_others(folder, restored)
    settings = load_settings()
    config = FlinkConfig(
        parallelism=parallelism,
        checkpoint_dir=folder,
        checkpoint_interval_s=None if folder is None else every_s,
        restore_from=restored,
        cluster=cluster,
        restart=Restart(delay_s=0.1, max_delay_s=30.0),
        heap_mb=heap_mb,
        archive_dir=settings.java,
        jars=installed_jars(settings.connectors),
        options={**ASKED_OFTEN, **(options or {})},
    )
    mute_pyflink()
    env = flink_environment(config)
    return ProgramEnvironment(env, config, log_every_s)


def mute_pyflink() -> None:
    """Drop log lines that do not help a user: Apache Beam without a client of Google Cloud Storage, PyFlink
    without compiled modules, and Py4J's traceback of a call that Ctrl-C interrupts, which is raised as
    well."""
    logging.getLogger("apache_beam.io.filesystems").addFilter(_is_useful)
    logging.getLogger().addFilter(_is_useful)
    pyflink = logging.getLogger("pyflink.fn_execution")
    if pyflink.level == logging.NOTSET:
        pyflink.setLevel(logging.WARNING)


def _is_useful(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(NOISE)


def newest_checkpoint(folder: str | Path) -> Path | None:
    """The newest complete checkpoint under `folder`, over all jobs that wrote there; None if there is none.

    Raises `SettingError` if the folder cannot be read, or if it is unclear which checkpoint is the newest.

    >>> fb.newest_checkpoint("state/nothing-here") is None
    True
    """
    return flink_checkpoints.newest_checkpoint(Path(folder))


log = logging.getLogger("forebay")

ASKED_OFTEN = {"web.refresh-interval": "1000", "metrics.fetcher.update-interval": "2000"}

NOISE = ("Failed to import GCSFileSystem", "KeyboardInterrupt while sending command")

_held: dict[Path, int] = {}


def hold_folder(folder: Path) -> bool:
    """Create `folder` and lock it for the life of this process: two jobs would resume from the same
    checkpoint and write everything twice.

    Returns False if this process holds it already. The lock ends with the process, even if it is killed.
    Raises `SettingError` if another one holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = folder.resolve() / LOCK
        if place in _held:
            return False
        descriptor = try_lock(place)
        if descriptor is None:
            raise SettingError(
                f"checkpoints: {folder} is in use by another process{_holder(place)}: a second job would "
                f"resume from the same checkpoint and write all results twice. Wait until it has ended, or "
                f"name another directory"
            )
        _held[place] = descriptor
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        return True
    except OSError as error:
        raise SettingError(f"checkpoints: {folder} cannot be used: {error.strerror}") from None


def check_none_runs(cluster: str, folder: Path) -> None:
    """Raise `SettingError` if a job with its checkpoints in `folder` still runs on the cluster: jobs outlive
    the program that submitted them."""
    try:
        found = FlinkRest(f"http://{cluster}").json("/jobs")["jobs"]
    except (LaunchError, ValueError, KeyError, TypeError):
        return
    ours = {job.name for job in jobs_in(folder)}
    for id in (job["id"] for job in found if job["status"] not in ENDED):
        if id in ours:
            raise SettingError(
                f"checkpoints: job {id}, which has its checkpoints in {folder}, still runs at {cluster}: a "
                f"second job would resume from the same checkpoint and write all results twice. Cancel it: "
                f"curl -X PATCH 'http://{cluster}/jobs/{id}?mode=cancel'"
            )


def forget_finished(folder: Path, *, start_over: bool = True) -> None:
    """Delete the files of finished jobs in `folder`, which this process must hold.

    If the last job has finished and `start_over` is set, log a warning and delete those of all jobs: resuming
    an older checkpoint would write later results twice.
    """
    jobs = jobs_in(folder)
    checkpoints = {job: checkpoints_of(job) for job in jobs}
    finished = {job: job / END_MARK for job in jobs if not checkpoints[job] and (job / END_MARK).is_file()}
    if not finished:
        return
    ended_ns = max(mark.stat().st_mtime_ns for mark in finished.values())
    written = [each.path / METADATA for found in checkpoints.values() for each in found]
    last = start_over and all(path.stat().st_mtime_ns <= ended_ns for path in written)
    if last:
        log.warning(
            "the last job with checkpoints in %s has finished: the job starts from the beginning, and writes "
            "its results again",
            folder,
        )
    for job in jobs if last else finished:
        shutil.rmtree(job, ignore_errors=True)


def resumed_checkpoint(folder: Path) -> Path | None:
    found = newest_checkpoint(folder)
    if found is None:
        log.info("no checkpoint in %s: the job starts from the beginning", folder)
    else:
        log.info("the job resumes from checkpoint %s", found)
    return found


def delete_others(folder: Path, resumed: Path) -> None:
    """Delete the files of jobs other than that of `resumed`, which needs none of them: Flink does not claim
    what it restores."""
    for job in jobs_in(folder):
        if job != resumed.parent:
            shutil.rmtree(job, ignore_errors=True)


def _holder(place: Path) -> str:
    with suppress(OSError, ValueError):
        return f" ({int(place.read_text(encoding='ascii')[:20])})"
    return ""
