"""Runs a pipeline to its end: checks what it needs, and resumes it from its last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from forebay.clients.s3.location import Location, location_of
from forebay.connectors.stdout import StdoutSink
from forebay.errors import SettingError
from forebay.files import check_nobody_else_writes
from forebay.flink.job import check_cluster
from forebay.pipeline.attempt import Preparation
from forebay.pipeline.file_systems import check_plugins, file_system_options
from forebay.pipeline.flink_process import FlinkLauncher
from forebay.pipeline.job_graph import connector_jars
from forebay.pipeline.preflight import check_paths, check_secrets
from forebay.pipeline.resume import (
    check_fingerprint,
    checkpoint_to_resume,
    clean_logs,
    end_orphan,
    found_state,
)
from forebay.pipeline.run_state import RunState
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import RISK, StateStore, number_of, open_store
from forebay.pipeline.supervisor import Engine, RunOptions, Supervisor, Watch
from forebay.settings import Settings

__all__ = ["OpenAnyEngine", "OpenEngine", "RunOptions", "Watch", "run_pipeline"]

OpenEngine = AbstractContextManager[Sequence[str]]
"""Yields the URLs of the replicas; if empty, the pipeline file's are used."""
OpenAnyEngine = AbstractContextManager[Engine]
"""Yields URLs, or replicas that the run starts and stops."""


def run_pipeline(
    spec: PipelineSpec,
    engine: OpenAnyEngine,
    options: RunOptions,
    settings: Settings,
    watch: Watch = lambda _: None,
    *,
    launcher: FlinkLauncher | None = None,
) -> Snapshot:
    """Run `spec` until it ends; blocks. Returns the last snapshot, which `watch` also receives, even after a
    failure.

    Resumes from the newest complete checkpoint unless `fresh`, and again (at most ten times in ten minutes)
    if Flink dies or the job stalls (see `JobStallDetector`). Restarts replicas of `engine` that die.
    KeyboardInterrupt cancels the job; its checkpoints stay. The caller closes `launcher`, which may have a
    process started ahead.

    Raises `SettingError` before entering `engine` if a secret is missing, a location is unusable, or the
    pipeline is running or has finished, and before submission if the engine does not serve the model;
    `PipelineFailed` if the engine does not answer for `deadline_s` or cannot be restarted, the job failed, or
    Flink was lost too often.
    """
    if options.cluster is not None and isinstance(spec.sink, StdoutSink):
        raise SettingError(
            "sink.type: expected jsonl with --cluster, found stdout; a cluster prints where its tasks run"
        )
    if options.cluster is not None and spec.task_managers > 1:
        raise SettingError(
            f"task_managers: expected 1 with --cluster, which has task managers of its own, found "
            f"{spec.task_managers}"
        )
    check_secrets(spec, here=options.cluster is None)
    check_paths(spec)
    jars = connector_jars(spec, settings)
    check_plugins(spec, settings)
    if launcher is not None:
        # A lock in an object store may have to be waited for.
        preparation = Preparation(
            spec=spec, settings=settings, cluster=options.cluster, file_systems=file_system_options(spec)
        )
        launcher.prepare(preparation, jars, planner=spec.event_time is not None)
    store = open_store(location_of(spec.checkpoint.dir))
    if options.in_process and store.remote:
        raise SettingError(f"checkpoint.dir: expected a folder with in_process, found {store.home}")
    with ExitStack() as open_:
        open_.enter_context(store.lock(spec.name))
        if options.cluster is not None:
            check_cluster(options.cluster)
        state = end_orphan(store, found_state(store, needed=not (options.fresh or options.from_checkpoint)))
        restore_from = _restore_from(spec, store, state, options)
        clean_logs(settings.run / "flink")
        if launcher is None and not options.in_process:
            launcher = open_.enter_context(FlinkLauncher(settings))
        run = Supervisor(spec, options, settings, watch, store=store, state=state, restore_from=restore_from)
        return run.to_the_end(lambda: open_.enter_context(engine), launcher)


def _restore_from(
    spec: PipelineSpec, store: StateStore, state: RunState, options: RunOptions
) -> Location | None:
    if options.fresh:
        return None
    chosen = options.from_checkpoint
    if chosen is None:
        return checkpoint_to_resume(spec, store, state)
    try:
        if isinstance(chosen, Path):
            check_nobody_else_writes(chosen, RISK)
        number_of(chosen)
    except FileNotFoundError:
        raise SettingError(
            f"--from-checkpoint: expected the folder of a checkpoint, found {chosen} without _metadata"
        ) from None
    check_fingerprint(spec, state)
    return chosen
