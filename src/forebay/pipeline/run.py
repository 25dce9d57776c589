"""Runs a plan to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path

from forebay.clients.s3.client import S3Client
from forebay.clients.s3.location import Location
from forebay.connectors.files.sink import GrowingSinks
from forebay.errors import SettingError
from forebay.files import check_nobody_else_writes
from forebay.flink.job import check_cluster
from forebay.pipeline.fingerprint import check_fingerprint
from forebay.pipeline.flink_process import FlinkLauncher
from forebay.pipeline.messages import Preparation
from forebay.pipeline.plan import Plan
from forebay.pipeline.preflight import check
from forebay.pipeline.resume import (
    checkpoint_to_resume,
    clean_logs,
    earlier_folders,
    end_orphan,
    found_state,
    result_folders,
)
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.state_store import RISK, RunState, StateStore, number_of, open_store
from forebay.pipeline.supervisor import Engine, Supervisor, Watch

__all__ = ["OpenAnyEngine", "OpenEngine", "Watch", "run_pipeline"]

OpenEngine = AbstractContextManager[Sequence[str]]
OpenAnyEngine = AbstractContextManager[Engine]


def run_pipeline(
    plan: Plan,
    engine: OpenAnyEngine,
    watch: Watch = lambda _: None,
    *,
    enough: Callable[[Snapshot], bool] = lambda now: False,
    launcher: FlinkLauncher | None = None,
) -> Snapshot:
    """Run `plan` until it ends; blocks. Returns the last snapshot.

    `watch` gets it, too, even after a failure. Resumes from the newest complete checkpoint unless `fresh`,
    and again (at most ten times in ten minutes) if Flink dies or the job stalls. Restarts replicas of
    `engine` that die. Once `enough` returns true, the job commits all events read so far and ends.
    KeyboardInterrupt cancels the job. The caller closes `launcher`.

    Raises `SettingError` before entering `engine` if a check fails, or the pipeline is running or has
    finished; `PipelineFailed` if the job failed, the engine is lost, or Flink was lost too often.
    """
    check(plan)
    preparation = Preparation(plan=plan, file_systems=_file_system_options(plan))
    if launcher is not None:
        # A lock in an object store may have to be waited for.
        launcher.prepare(preparation)
    store = open_store(plan.state)
    with ExitStack() as open_:
        open_.enter_context(store.lock(plan.spec.name))
        if plan.cluster is not None:
            check_cluster(plan.cluster)
        state = end_orphan(store, found_state(store, needed=not (plan.fresh or plan.from_checkpoint)))
        # First, because a run may have been killed right after the end of its job.
        # Task managers of a cluster write elsewhere.
        results = result_folders(plan.spec) if plan.cluster is None else []
        files = open_.enter_context(closing(GrowingSinks(results, earlier_folders(plan.spec, state))))
        restore_from = _restore_from(plan, store, state)
        clean_logs(plan.settings.run / "flink")
        if launcher is None and not plan.in_process:
            launcher = open_.enter_context(FlinkLauncher())
        supervisor = Supervisor(
            preparation,
            watch,
            store=store,
            state=state,
            restore_from=restore_from,
            enough=enough,
            files=files,
        )
        return supervisor.run(lambda: open_.enter_context(engine), launcher)


def _file_system_options(plan: Plan) -> dict[str, str]:
    """Without secrets. Raises like `S3Client`."""
    place = next(iter(plan.in_object_store.values()), None)
    return {} if place is None else S3Client(place.bucket).flink_options()


def _restore_from(plan: Plan, store: StateStore, state: RunState) -> Location | None:
    if plan.fresh:
        return None
    chosen = plan.from_checkpoint
    if chosen is None:
        return checkpoint_to_resume(plan.spec, store, state)
    try:
        if isinstance(chosen, Path):
            check_nobody_else_writes(chosen, RISK)
        number_of(chosen)
    except FileNotFoundError:
        raise SettingError(
            f"--from-checkpoint: expected the folder of a checkpoint, found {chosen} without _metadata"
        ) from None
    check_fingerprint(plan.spec, state)
    return chosen
