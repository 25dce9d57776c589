"""One attempt at a pipeline's job: check Kafka, build the job, submit it, watch it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.clients.s3.location import location_of
from forebay.clock import SystemClock
from forebay.connectors.jars import plugins
from forebay.connectors.kafka.admin import KafkaAway, KafkaRefused, Place
from forebay.connectors.kafka.settings import transaction_prefix
from forebay.errors import LaunchError
from forebay.flink.checkpoints import KeptCheckpoints
from forebay.flink.environment import (
    FlinkConfig,
    Restart,
    embedded_rest,
    flink_environment,
    load_file_systems,
    reach_file_system,
)
from forebay.flink.job import Checkpoints, RunningJob, end_job, submit
from forebay.flink.job_activity import EmbeddedActivity, WatchedActivity
from forebay.flink.jvm import collect_garbage, jvm_process
from forebay.flink.rest import FlinkRest
from forebay.flink.task_managers import standalone_cluster
from forebay.pipeline.backlog import lag_watched
from forebay.pipeline.checkpoint_loop import (
    MIN_S,
    CheckpointLoop,
    CheckpointSchedule,
    JobActivity,
    processor_s,
)
from forebay.pipeline.fingerprint import changed_traits, check_same_kafka
from forebay.pipeline.inference import Served
from forebay.pipeline.job_graph import build
from forebay.pipeline.kafka.offsets import GroupOffsets, settlement
from forebay.pipeline.kafka.start import KafkaStart, await_brokers, begin, resumed
from forebay.pipeline.kafka.transactions import NAMES, CommitWatch, Start, Topic, end_transactions
from forebay.pipeline.messages import (
    CANCEL_S,
    AttemptSpec,
    AwaitsKafka,
    JobStatus,
    NewTopics,
    Preparation,
    Ready,
    Report,
    ResumesEarlier,
    Skipped,
    StopRequests,
)
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import number_of
from forebay.pipeline.watch import POLL_S, watch_until_end
from forebay.ports import free_port

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment

ARRIVAL_S = 10.0
MIN_KAFKA_S = 0.4
"""A broker remembers each transaction's name for a week."""
NO_WATERMARKS = {"pipeline.auto-watermark-interval": "0 ms"}
"""By default, each source wakes five times a second to emit a watermark."""
NEVER = "3650 d"


def imports_of(spec: PipelineSpec) -> tuple[str, ...]:
    # Applications may ask with a schema of their own.
    schema = () if spec.output is None and spec.application is None else ("jsonschema",)
    return schema if spec.scaling is None else (*schema, "forebay.flink.demand")


class JobAttempt:
    def __init__(
        self, order: AttemptSpec, report: Callable[[Report], None], stop_requests: StopRequests
    ) -> None:
        self._order = order
        self._report = report
        self._stop_requests = stop_requests
        self._kafka: dict[str, str] = {}
        self._topics = KafkaStart()
        self._activity: WatchedActivity | None = None

    def check(self) -> None:
        """Wait for Kafka, check topics and access, and end the previous job's transactions.

        Raises as `await_brokers`, `end_transactions` and `resumed`, and `SettingError` for another Kafka.
        """
        order, spec = self._order, self._order.plan.spec
        self._kafka = await_brokers(spec, lambda text, waited_s: self._report(AwaitsKafka(text, waited_s)))
        if order.restore_from is not None:
            check_same_kafka(order.state, self._kafka)
        recovered = end_transactions(spec, order.state, order.restore_from, chosen=order.chosen)
        if recovered.reason:
            order = self._order = replace(order, restore_from=recovered.checkpoint)
            self._report(ResumesEarlier(str(recovered.checkpoint), recovered.reason))
        if order.restore_from is not None:
            topics = order.state.topics
            self._begin_at(resumed(spec, order.restore_from, topics, order.job_id, chosen=order.chosen))

    def run(self, served: Served) -> Snapshot:
        """Submits after `report(Ready)` returns. Raises `SettingError`, and as `watch_until_end`."""
        port = free_port()
        config = _config(self._order, port, replaces_offsets=self._topics.replaces_offsets)
        plan = self._order.plan
        with standalone_cluster(config, imports=imports_of(plan.spec)):
            return self._run(served, config, port)

    def _run(self, served: Served, config: FlinkConfig, port: int) -> Snapshot:
        order, spec = self._order, self._order.plan.spec
        until = self._ends()
        env = flink_environment(config)
        commits = _commit_watch(order)
        build(
            spec,
            env,
            replicas=served.replicas,
            model=served.model,
            scaling=served.scaling,
            job=order.job_id,
            transactions=order.job_id,
            run=order.run_id,
            # A cluster's files may be on other machines.
            grows=order.plan.cluster is None,
            topics=self._topics.start,
        )
        noted = tuple((end.topic, end.partition, end.offset) for end in until)
        cluster = order.plan.cluster
        rest_port = None if cluster else port
        generations = dict(self._topics.start.generations)
        self._report(Ready(jvm_process(), self._kafka, noted, generations, rest_port))
        rest = FlinkRest(f"http://{cluster}") if cluster else embedded_rest(config, port)
        if cluster:
            # Flink itself triggers checkpoints: they continue if this process dies, and counts are old.
            return self._watch(self._submit(env, rest), until, commits)
        if spec.task_managers > 1:
            self._activity = WatchedActivity(rest, order.job_id)
            job = self._submit(env, rest)
            with closing(_checkpoint_loop(spec, self._activity)) as loop:
                return self._watch(job, until, commits, loop)
        with closing(EmbeddedActivity(order.job_id)) as activity:
            job = self._submit(env, rest)
            activity.submitted(job.client)
            used_s = partial(processor_s, jvm_process()[0])
            with closing(_checkpoint_loop(spec, activity, used_s)) as loop:
                return self._watch(job, until, commits, loop)

    def _submit(self, env: StreamExecutionEnvironment, rest: FlinkRest) -> RunningJob:
        order = self._order
        try:
            return submit(env, order.plan.spec.name, rest)
        except KeyboardInterrupt:
            # The submission may still be in progress; a cluster would run the job with nobody watching.
            with suppress(LaunchError):
                end_job(rest, order.job_id, CANCEL_S, unknown_s=ARRIVAL_S)
            raise

    def _watch(
        self,
        job: RunningJob,
        until: tuple[Place, ...],
        commits: CommitWatch,
        loop: CheckpointLoop | None = None,
    ) -> Snapshot:
        order, spec = self._order, self._order.plan.spec

        offsets = GroupOffsets(
            spec,
            until,
            job.checkpoints,
            settlement(spec, cluster=order.plan.cluster is not None),
            ids=self._topics.ids,
            seen=lambda ids: self._report(NewTopics(dict(ids))),
        )

        def committed(checkpoints: Checkpoints) -> None:
            if loop is not None:
                loop.check()
                # Counts of several task managers are those of the model's operator alone.
                unseen = self._activity is not None and spec.application is not None
                # A checkpoint can overtake records on their way to a sink, and Flink repeats none of its own.
                left = checkpoints.newest_clear < checkpoints.newest_done or bool(checkpoints.failure)
                if offsets.awaits or unseen or left:
                    loop.want()
            commits(checkpoints)

        waits = lag_watched(spec, job, restored=order.restore_from is not None, if_read=True)
        # Only marks in this JVM are reliable: other counts come from looks at the job.
        marked = loop if self._activity is None and spec.scaling is None else None
        with closing(offsets), closing(commits), waits as waiting:
            last = watch_until_end(
                job,
                self._look,
                self._stop_requests,
                order.plan.state / job.id,
                one_each=spec.application is None,
                waiting=waiting,
                answered=offsets,
                committed=committed,
                awaits=lambda: offsets.awaits,
                stirred=None if marked is None else lambda: marked.waits,
                at_rest=collect_garbage if order.plan.cluster is None else lambda: None,
            )
            commits.finished()
            with suppress(KafkaAway, KafkaRefused):
                offsets.finished()
        return last

    def _look(self, status: JobStatus) -> None:
        if self._activity is not None:
            now = status.snapshot
            self._activity.look(now.accepted, now.results + now.dead_letters)
        self._report(status)

    def _ends(self) -> tuple[Place, ...]:
        spec, state = self._order.plan.spec, self._order.state
        first = False
        if self._order.restore_from is None:
            first = self._order.fresh or state.ends is None or bool(changed_traits(spec, state.traits or {}))
            self._begin_at(begin(spec, state.topics, first=first))
        return self._topics.ends if first else self._topics.ends_of(state)

    def _begin_at(self, topics: KafkaStart) -> None:
        self._topics = topics
        if topics.gaps:
            records = sum(gap.records for gap in topics.gaps)
            self._report(Skipped(tuple(map(str, topics.gaps)), records))


def _checkpoint_loop(
    spec: PipelineSpec, activity: JobActivity, used_s: Callable[[], float] = lambda: 0.0
) -> CheckpointLoop:
    clock = SystemClock()
    schedule = CheckpointSchedule(spec.checkpoint.interval_s, clock.monotonic_s(), _least_interval_s(spec))
    loop = CheckpointLoop(activity, schedule, processor_s=used_s, clock=clock)
    loop.start()
    return loop


def _least_interval_s(spec: PipelineSpec) -> float:
    if any(not isinstance(location_of(path), Path) for path in spec.directories().values()):
        # Each checkpoint adds an object to the store.
        return spec.checkpoint.interval_s
    transactions = any(sink.guarantee == "exactly-once" for sink in spec.topics().values())
    return MIN_KAFKA_S if transactions else MIN_S


def _commit_watch(order: AttemptSpec) -> CommitWatch:
    spec = order.plan.spec
    topics = (
        Topic(key, sink, transaction_prefix(spec.name, NAMES[key], order.job_id))
        for key, sink in spec.topics().items()
        if sink.guarantee == "exactly-once"
    )
    start = Start(
        number=0 if order.restore_from is None else number_of(order.restore_from),
        subtasks=spec.parallelism,
        checkpoint=order.restore_from,
    )
    state = order.plan.state
    # An object in an object store cannot have a second name.
    kept = KeptCheckpoints(state / order.job_id) if isinstance(state, Path) else None
    return CommitWatch(topics, start, kept)


def _config(order: AttemptSpec, port: int, *, replaces_offsets: bool) -> FlinkConfig:
    plan, spec, settings = order.plan, order.plan.spec, order.plan.settings
    local = {
        "rest.port": str(port),
        "rest.bind-port": str(port),
        # Maximum age of the metrics from the REST service; ten seconds by default.
        "metrics.fetcher.update-interval": f"{round(POLL_S * 500)} ms",
        "rest.cache.checkpoint-statistics.timeout": f"{round(POLL_S * 500)} ms",
        # A task that does not end after a cancel kills its task manager, here all of Flink, which is then
        # restarted; after three minutes by default.
        "task.cancellation.timeout": "30 s",
        # The attempt triggers checkpoints; without an interval, Flink would make none.
        "execution.checkpointing.interval": NEVER,
    }
    return FlinkConfig(
        parallelism=spec.parallelism,
        task_managers=spec.task_managers,
        checkpoint_dir=plan.state,
        checkpoint_interval_s=spec.checkpoint.interval_s,
        restore_from=order.restore_from,
        restart=Restart(delay_s=0.1, max_delay_s=30.0),
        cluster=plan.cluster,
        log_dir=settings.run / "flink",
        archive_dir=settings.java,
        jars=plan.jars,
        plugins=plugins(settings.connectors) if order.file_systems else None,
        options={
            **({} if plan.cluster else local),
            **order.file_systems,
            # Set before submission, so that the job can be found after a kill at any moment.
            "$internal.pipeline.job-id": order.job_id,
            # The state of the replaced source.
            **({"execution.state-recovery.ignore-unclaimed-state": "true"} if replaces_offsets else {}),
            **({} if spec.event_time or spec.application else NO_WATERMARKS),
            "execution.checkpointing.timeout": f"{round(spec.checkpoint.timeout_s * 1000)} ms",
            **{key: flink_value(value) for key, value in spec.flink.items()},
        },
    )


def load_ahead(preparation: Preparation, loaded: Callable[[], None]) -> None:
    plan = preparation.plan
    try:
        with suppress(Exception):
            options = {key: flink_value(value) for key, value in plan.spec.flink.items()}
            load_file_systems(plugins(plan.settings.connectors), {**preparation.file_systems, **options})
    finally:
        loaded()
    with suppress(Exception):
        reach_file_system(plan.spec.checkpoint.dir)


def flink_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
