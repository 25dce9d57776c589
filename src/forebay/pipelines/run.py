"""Run a pipeline to its end: check what it needs, resume from the newest checkpoint, watch the job."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from forebay.connectors.kafka.admin import KafkaAway, KafkaRefused, Place
from forebay.errors import LaunchError, SettingError
from forebay.operators.environment import FlinkConfig, Restart, flink_environment
from forebay.operators.job import check_cluster, end_job, submit
from forebay.operators.jvm import HEAP_MB, jvm_process, start_jvm
from forebay.operators.ports import free_port
from forebay.pipelines.brokers import await_brokers, kafka_read
from forebay.pipelines.keeper import Keeper
from forebay.pipelines.lag import lag_watched
from forebay.pipelines.places import check_places, check_secrets
from forebay.pipelines.positions import CLUSTER_SKEW_MS, GroupOffsets, begin, ends
from forebay.pipelines.printed import Printed
from forebay.pipelines.resume import (
    Note,
    Tidy,
    check_same_kafka,
    checkpoint_to_resume,
    end_orphan,
    forget,
    held,
    read_note,
    tidy_logs,
    traits,
    write_note,
)
from forebay.pipelines.served import served_by
from forebay.pipelines.settling import Settling
from forebay.pipelines.snapshot import AWAITS_KAFKA, WAITING, Snapshot
from forebay.pipelines.spec import PipelineSpec, StdoutSink
from forebay.pipelines.streams import build, connector_jars
from forebay.pipelines.watching import CANCEL_S, POLL_S, Watch, watch_until_end
from forebay.pipelines.written import Written
from forebay.settings import Settings

ARRIVAL_S = 10.0
METRICS_S = 3.0
CLUSTER_METRICS_S = 30.0
"""Metrics that Flink's REST service tells are younger than this; a cluster's, by default, are fetched every
ten seconds."""
Engine = AbstractContextManager[Sequence[str]]
"""Enters with the URLs of the replicas that answer; with none, the pipeline says where they are."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How this run differs from what the file says. `fresh` forgets the pipeline's checkpoints, and adds its
    results to those that the sink holds. `cluster` is the `HOST:PORT` of a running Flink. `enough` is asked
    after each look at the job: once it is true, the job completes what it has read, commits it and ends."""

    fresh: bool = False
    cluster: str | None = None
    enough: Callable[[Snapshot], bool] = lambda now: False


def run_pipeline(
    spec: PipelineSpec, engine: Engine, options: RunOptions, settings: Settings, watch: Watch = lambda _: None
) -> Snapshot:
    """Run `spec` until it ends; blocks. Returns the last snapshot.

    Resumes from the newest complete checkpoint unless `fresh`. Replicas that `engine` entered with and that
    die are started again. Interrupted (KeyboardInterrupt), the job is cancelled and its checkpoints stay.

    Raises `SettingError` before the engine is entered where a secret is missing, places cannot be read or
    written or the pipeline is running already or has finished, and before Flink starts where the engine does
    not serve the model; `PipelineFailed` where the engine does not answer for `deadline_s`, Flink gave the
    job up, or a replica cannot be started again.
    """
    if options.cluster is not None and isinstance(spec.sink, StdoutSink):
        raise SettingError(
            "sink.type: expected jsonl with --cluster, found stdout; a cluster prints where its tasks run"
        )
    check_secrets(spec, here=options.cluster is None)
    check_places(spec)
    home = Path(spec.checkpoint.dir)
    with held(home, spec.name):
        if options.cluster is not None:
            check_cluster(options.cluster)
        end_orphan(home)
        restore_from = None if options.fresh else checkpoint_to_resume(spec, home)
        jars = connector_jars(spec, settings)
        printed = Printed() if isinstance(spec.sink, StdoutSink) else None
        with printed.taken() if printed else nullcontext():
            start_jvm(settings.run / "flink", heap_mb=HEAP_MB, jars=jars)
        await_brokers(
            spec, lambda words, waited_s: watch(Snapshot(waited_s, AWAITS_KAFKA, engine_failure=words))
        )
        note, kafka = read_note(home), kafka_read(spec)
        if restore_from is not None:
            check_same_kafka(note, kafka)
        with engine as urls:
            served = served_by(
                spec, urls, lambda words, waited_s: watch(Snapshot(waited_s, WAITING, engine_failure=words))
            )
            tidy_logs(settings.run / "flink")
            port, job_id = free_port(), uuid.uuid4().hex
            env = flink_environment(_config(spec, options, settings, restore_from, port=port, job_id=job_id))
            build(spec, env, replicas=served.replicas, model=served.model)
            if options.fresh:
                forget(home)
            until = _ends(spec, note, options, restore_from)
            written = Written(spec, printed)
            write_note(
                home,
                Note(
                    traits=traits(spec),
                    submitted_s=time.time(),
                    jvm=jvm_process(),
                    cluster=options.cluster,
                    job=job_id,
                    ends=[astuple(end) for end in until],
                    kafka=kafka,
                ),
            )
            rest_url = f"http://{options.cluster or f'localhost:{port}'}"
            try:
                job = submit(env, spec.name, rest_url)
            except KeyboardInterrupt:
                # It may be on its way still, and a cluster would run it with nobody to watch.
                with suppress(LaunchError):
                    end_job(rest_url, job_id, CANCEL_S, unknown_s=ARRIVAL_S)
                raise
            chores: list[Callable[[], None]] = [Tidy(home, job_id, restore_from)]
            if printed is not None:
                chores.append(printed.check)
            offsets = GroupOffsets(spec, until, job.checkpoints, _settling(spec, options))
            waits = lag_watched(spec, job, restored=restore_from is not None)
            with closing(offsets), waits as waiting:
                last = watch_until_end(
                    job,
                    watch,
                    Keeper(urls),
                    home / job.id,
                    chores,
                    waiting=waiting,
                    answered=lambda now: offsets(now) or options.enough(now),
                )
                with suppress(KafkaAway, KafkaRefused):
                    offsets.finished()
            # First of all: a run that is killed while it counts has finished nevertheless.
            write_note(home, replace(read_note(home), finished=True))
            shutil.rmtree(home / job.id, ignore_errors=True)
            last = written.since(last)
            watch(last)
            return last


def _ends(
    spec: PipelineSpec, note: Note, options: RunOptions, restore_from: Path | None
) -> tuple[Place, ...]:
    """Where the pipeline's topics ended at its first start. Sets where a start without a checkpoint
    begins."""
    noted = None if note.ends is None else tuple(Place(*end) for end in note.ends)
    if restore_from is not None:
        return ends(spec) if noted is None else noted
    first = options.fresh or noted is None or note.traits != traits(spec)
    now = begin(spec, first=first)
    return now if first or noted is None else noted


def _settling(spec: PipelineSpec, options: RunOptions) -> Settling[tuple[Place, ...]]:
    many = spec.parallelism > 1 and spec.event_time is None
    if options.cluster is None:
        return Settling(METRICS_S, many_readers=many)
    return Settling(CLUSTER_METRICS_S, CLUSTER_SKEW_MS, many_readers=many)


def _config(
    spec: PipelineSpec,
    options: RunOptions,
    settings: Settings,
    restore_from: Path | None,
    *,
    port: int,
    job_id: str,
) -> FlinkConfig:
    local = {
        "rest.port": str(port),
        "rest.bind-port": str(port),
        # How old the metrics that the REST service tells may be; ten seconds by default.
        "metrics.fetcher.update-interval": f"{round(POLL_S * 500)} ms",
        "rest.cache.checkpoint-statistics.timeout": f"{round(POLL_S * 500)} ms",
    }
    return FlinkConfig(
        parallelism=spec.parallelism,
        checkpoint_dir=Path(spec.checkpoint.dir),
        checkpoint_interval_s=spec.checkpoint.interval_s,
        restore_from=restore_from,
        restart=Restart(attempts=10, delay_s=1.0, max_delay_s=30.0),
        cluster=options.cluster,
        log_dir=settings.run / "flink",
        jars=connector_jars(spec, settings),
        options={
            **({} if options.cluster else local),
            # Known before the job is submitted, it is found again after a kill at any moment.
            "$internal.pipeline.job-id": job_id,
            "execution.checkpointing.timeout": f"{round(spec.checkpoint.timeout_s * 1000)} ms",
            **{key: _flink_value(value) for key, value in spec.flink.items()},
        },
    )


def _flink_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
