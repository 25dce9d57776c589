"""Run a pipeline to its end: check what it needs, resume from the newest checkpoint, watch the job."""

from __future__ import annotations

import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import orjson

from forebay.connectors.feed import FeedRefused
from forebay.connectors.kafka.admin import KafkaAway, KafkaRefused, Place
from forebay.connectors.kafka.registry import RegistryRefused
from forebay.connectors.sinks import committed_parts
from forebay.errors import LaunchError, PipelineFailed, SettingError
from forebay.fleet.replicas.base import ReplicaList
from forebay.fleet.replicas.fixed import FixedReplicas
from forebay.operators.environment import FlinkConfig, Restart, flink_environment
from forebay.operators.job import LIMIT_REACHED, RunningJob, check_cluster, end_job, submit
from forebay.operators.jvm import HEAP_MB, jvm_process, start_jvm
from forebay.operators.ports import free_port
from forebay.pipelines.applications import COUNTING
from forebay.pipelines.brokers import await_brokers, kafka_read
from forebay.pipelines.keeper import Keeper
from forebay.pipelines.lag import LastCount, lag_watched
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
from forebay.pipelines.served import served_model
from forebay.pipelines.settling import Settling
from forebay.pipelines.snapshot import AWAITS_KAFKA, WAITING, Snapshot
from forebay.pipelines.spec import PipelineSpec, StdoutSink
from forebay.pipelines.streams import build, connector_jars
from forebay.settings import Settings

POLL_S = 0.5
REFUSED = tuple(f"{error.__name__}: " for error in (FeedRefused, RegistryRefused))
"""How failures begin that no restart will mend."""
CANCEL_S = 60.0
ARRIVAL_S = 10.0
METRICS_S = 3.0
CLUSTER_METRICS_S = 30.0
"""Metrics that Flink's REST service tells are younger than this; a cluster's, by default, are fetched every
ten seconds."""
CALLS_PER_BUNDLE = 16
"""In process mode a checkpoint waits for the bundle in hand, and with all slots taken each event of the
bundle waits for one: a bundle of a sixteenth of the slots takes a sixteenth of a call."""

COUNTED_PER_BUNDLE = 256
"""Applications that make no call for each event have larger bundles."""


Watch = Callable[[Snapshot], None]
NO_ENGINE = "http://none.invalid"
"""Stands for the engine of a pipeline that asks no model."""
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
            replicas, model = _engine_of(spec, urls, watch)
            tidy_logs(settings.run / "flink")
            port, job_id = free_port(), uuid.uuid4().hex
            env = flink_environment(_config(spec, options, settings, restore_from, port=port, job_id=job_id))
            build(spec, env, replicas=replicas, model=model)
            if options.fresh:
                forget(home)
            until = _ends(spec, note, options, restore_from)
            written = _Written(spec, printed)
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
                last = _watch_until_end(
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


def _engine_of(spec: PipelineSpec, urls: Sequence[str], watch: Watch) -> tuple[ReplicaList, str]:
    """The replicas and the name of their model; none where no model is asked."""
    if not spec.asks_model:
        return FixedReplicas((NO_ENGINE,)), "none"
    replicas = replicas_of(spec, urls)
    model = served_model(
        spec, replicas, lambda words, waited_s: watch(Snapshot(waited_s, WAITING, engine_failure=words))
    )
    return replicas, model


def replicas_of(spec: PipelineSpec, urls: Sequence[str]) -> ReplicaList:
    """The replicas at `urls`, or those of the pipeline where there are none."""
    given = FixedReplicas(tuple(urls)) if urls else spec.engine.replicas()
    if given is None:
        raise SettingError("engine.url: expected the address of an engine, found none")
    return given


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
        mode=spec.mode,
        parallelism=spec.parallelism,
        bundle_size=_bundle_size(spec),
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


def _bundle_size(spec: PipelineSpec) -> int:
    if spec.application is not None and spec.application.type in COUNTING:
        return COUNTED_PER_BUNDLE
    return max(1, spec.capacity // CALLS_PER_BUNDLE)


def _flink_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _watch_until_end(
    job: RunningJob,
    watch: Watch,
    keeper: Keeper,
    savepoints: Path,
    chores: Sequence[Callable[[], None]],
    *,
    waiting: LastCount,
    answered: Callable[[Snapshot], bool],
) -> Snapshot:
    started_s = time.monotonic()
    last = Snapshot(0.0, "CREATED")

    def engine_ended(words: str) -> None:
        nonlocal last
        last = replace(last, engine_restarts=last.engine_restarts + 1, engine_failure=words)
        watch(last)

    try:
        while (cause := job.ended()) is None:
            time.sleep(POLL_S)
            last = replace(last, elapsed_s=time.monotonic() - started_s)
            keeper.mend(engine_ended)
            for chore in chores:
                chore()
            # A service that does not answer is one that is ending with its job; the next round will tell.
            with suppress(LaunchError):
                last = _snapshot(job, last, savepoints)
                last = replace(last, backlog=waiting.backlog(last))
                if answered(last):
                    job.drain(savepoints)
            watch(last)
    except BaseException:
        # What runs on would go on to write, and on a cluster nothing else would end it.
        with suppress(LaunchError):
            end_job(job.rest_url, job.id, CANCEL_S)
        raise
    if cause:
        raise PipelineFailed(f"Flink gave the job up: {cause}")
    return replace(last, state="FINISHED", elapsed_s=time.monotonic() - started_s)


def _snapshot(job: RunningJob, before: Snapshot, savepoints: Path) -> Snapshot:
    state, restarts = job.state(), job.restarts()
    now = replace(before, state=state, restarts=restarts)
    if restarts != before.restarts:
        now = replace(now, failure=job.failure())
        if not before.accepted and now.failure.startswith(REFUSED):
            # The file is wrong, and no restart will mend it.
            raise PipelineFailed(now.failure)
    counts = job.counts()
    if not counts:
        return now
    if counts.get(LIMIT_REACHED):
        # A feed has no end of its own.
        job.drain(savepoints)

    def whole(name: str) -> int:
        return int(counts.get(name, 0))

    return replace(
        now,
        accepted=whole("accepted"),
        results=whole("results"),
        dead_letters=whole("dead_letters"),
        in_flight=whole("in_flight"),
        pending=whole("pending"),
        oldest_read_ms=whole("oldest_read_ms"),
        retries=whole("retries"),
        reissued=whole("reissued"),
        prompt_tokens=whole("prompt_tokens"),
        completion_tokens=whole("completion_tokens"),
        event_p50_s=counts.get("event_p50_us", 0) / 1e6,
        event_p99_s=counts.get("event_p99_us", 0) / 1e6,
        engine_p50_s=counts.get("engine_p50_us", 0) / 1e6,
    )


class _Written:
    """Counts what a run wrote: an embedded cluster takes its last metrics with it when its job ends."""

    def __init__(self, spec: PipelineSpec, printed: Printed | None) -> None:
        self._printed = printed
        self._one_each = spec.application is None
        written = {key: Path(path) for key, path in spec.directories().items()}
        self._results = written.get("sink.path")
        self._letters = written.get("dead_letters.path")
        self._before = {*self._parts(self._results), *self._parts(self._letters)}

    def since(self, last: Snapshot) -> Snapshot:
        """`last` with the exact numbers where results went to files; reads what was written."""
        letters = last.dead_letters
        if self._letters is not None:
            letters = sum(1 for _ in self._lines(self._letters))
        if self._results is None and self._printed is None:
            # A topic is not counted: it may hold more than this run's, or less by now.
            return replace(last, dead_letters=letters)
        counted = self._results_in_files() if self._printed is None else self._results_printed()
        if counted is None:
            return replace(last, dead_letters=letters)
        results, prompt_tokens, completion_tokens = counted
        return replace(
            last,
            results=results,
            dead_letters=letters,
            # An application's results are not one for each event.
            accepted=results + letters if self._one_each else last.accepted,
            in_flight=0,
            pending=0,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
        )

    def _results_in_files(self) -> tuple[int, int, int]:
        found: Counter[str] = Counter()
        for line in self._lines(self._results):
            usage = orjson.loads(line)["usage"]
            found["results"] += 1
            found["prompt"] += usage["prompt_tokens"]
            found["completion"] += usage["completion_tokens"]
        return found["results"], found["prompt"], found["completion"]

    def _results_printed(self) -> tuple[int, int, int] | None:
        """None where there were none, or a JVM printed them that an earlier run of this process started."""
        printed = self._printed
        assert printed is not None
        printed.settle()
        return (
            (printed.results, printed.prompt_tokens, printed.completion_tokens) if printed.results else None
        )

    def _lines(self, path: Path | None) -> Iterator[bytes]:
        for part in self._parts(path):
            if part not in self._before:
                with part.open("rb") as file:
                    yield from file

    @staticmethod
    def _parts(path: Path | None) -> list[Path]:
        return [] if path is None else committed_parts(path)
