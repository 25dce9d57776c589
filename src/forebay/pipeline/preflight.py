"""Checks before a pipeline starts: secrets, locations that it reads and writes, connectors, and Kafka."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from forebay.clients.s3.client import S3Client, StoreAway
from forebay.clients.s3.location import S3Path
from forebay.clock import Clock, SystemClock
from forebay.connectors.jars import installed_jar
from forebay.connectors.kafka.admin import (
    KafkaAdmin,
    Say,
    ask_kafka,
    check_topic_written,
    check_topics_read,
    check_transaction_timeout,
)
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.settings import KafkaSink, KafkaSource
from forebay.connectors.stdout import StdoutSink
from forebay.errors import SettingError
from forebay.pipeline.plan import Plan
from forebay.pipeline.spec import PipelineSpec
from forebay.settings import read_secret


def check(plan: Plan, *, dry_run: bool = False) -> None:
    """Check everything that a run needs before Flink starts, except Kafka; blocks, and creates directories.

    A `dry_run` creates none, and needs no connector installed. Raises `SettingError` if the plan contradicts
    itself, a secret or a connector is missing, an input cannot be read, or an output location cannot be
    written; `SetupError` if a client is not installed.
    """
    spec, cluster = plan.spec, plan.cluster
    if cluster is not None and isinstance(spec.sink, StdoutSink):
        raise SettingError(
            "sink.type: expected jsonl with --cluster, found stdout; a cluster prints where its tasks run"
        )
    if cluster is not None and spec.task_managers > 1:
        raise SettingError(
            f"task_managers: expected 1 with --cluster, which has task managers of its own, found "
            f"{spec.task_managers}"
        )
    check_secrets(spec, here=cluster is None)
    check_paths(plan, make=not dry_run)
    for jar in () if dry_run else plan.connectors:
        installed_jar(jar, plan.settings.connectors)
    if plan.in_process and isinstance(plan.state, S3Path):
        raise SettingError(f"checkpoint.dir: expected a folder with in_process, found {plan.state}")


def check_paths(plan: Plan, *, make: bool = True) -> None:
    """Raise `SettingError` if an input cannot be read as configured, or an output location cannot be written.

    Creates directories to write to if `make`.
    """
    for key, connector in {"source": plan.spec.source, **plan.spec.sinks()}.items():
        connector.check(key)
    for key, folder in plan.places.items():
        if isinstance(folder, S3Path):
            _check_bucket(key, folder)
            continue
        try:
            if make:
                folder.mkdir(parents=True, exist_ok=True)
            place = folder if make else _nearest(folder)
        except OSError as error:
            raise SettingError(f"{key}: {folder} cannot be created: {error.strerror}") from None
        if not os.access(place, os.W_OK | os.X_OK):
            raise SettingError(f"{key}: {folder} cannot be written: no permission")


def _check_bucket(key: str, folder: S3Path) -> None:
    try:
        S3Client(folder.bucket).check(folder.key)
    except (SettingError, StoreAway) as error:
        raise SettingError(f"{key}: {error}") from None


def check_secrets(spec: PipelineSpec, *, here: bool) -> None:
    """Raise `SettingError` if a secret that the pipeline names is missing, `SetupError` if a registry's
    client is.

    The command also needs the engine's key; sources' and sinks' keys are needed where tasks run: `here`, or
    on a cluster's machines.
    """
    key = spec.engine.secret()
    if key is not None:
        try:
            read_secret(key)
        except SettingError as error:
            raise SettingError(f"engine.api_key: {error}") from None
    if here:
        for where, connector in {"source": spec.source, **spec.sinks()}.items():
            connector.check_secrets(where)


def _nearest(folder: Path) -> Path:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return there


PATIENCE_S = 120.0

Check = Callable[[KafkaAdmin], None]


def await_brokers(
    spec: PipelineSpec,
    say: Say = lambda words, waited_s: None,
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Wait until every Kafka of `spec` answers, and check its topics; blocks. Returns the source cluster's
    id, if any.

    Needs this process's JVM, with the connector on its class path. Raises `PipelineFailed` if a Kafka does
    not answer within two minutes, `KafkaRefused` if it rejects the client, and `SettingError` if a topic is
    missing or limits records below the producer's size, another consumer uses the source's group, or
    transactions must end earlier than the sink requires.
    """
    time_ = clock or SystemClock()
    begin_s = time_.monotonic_s()
    read: str | None = None
    for cluster, checks in _by_cluster(_checks(spec)):
        reads = isinstance(spec.source, KafkaSource) and spec.source.cluster() == cluster

        def ask(admin: KafkaAdmin, checks: list[Check] = checks, reads: bool = reads) -> str | None:
            for check in checks:
                check(admin)
            return admin.cluster_id() if reads else None

        id = ask_kafka(
            cluster, ask, patience_s=PATIENCE_S, begin_s=begin_s, say=say, clock=time_, sleep=sleep
        )
        read = id or read
    return read


def _by_cluster(checks: Iterable[tuple[KafkaCluster, Check]]) -> list[tuple[KafkaCluster, list[Check]]]:
    found: list[tuple[KafkaCluster, list[Check]]] = []
    for cluster, check in checks:
        known = next((of for other, of in found if other == cluster), None)
        if known is None:
            found.append((cluster, [check]))
        else:
            known.append(check)
    return found


def _checks(spec: PipelineSpec) -> Iterator[tuple[KafkaCluster, Check]]:
    source = spec.source
    if isinstance(source, KafkaSource):
        yield source.cluster(), lambda admin: _check_source(admin, source, source.group_of(spec.name))
    for key, sink in spec.topics().items():

        def check(admin: KafkaAdmin, key: str = key, sink: KafkaSink = sink) -> None:
            _check_sink(admin, key, sink)

        yield sink.cluster(), check


def _check_source(admin: KafkaAdmin, source: KafkaSource, group: str) -> None:
    check_topics_read(admin, source.topics, "source.topics")
    members = admin.members(group)
    if members:
        raise SettingError(
            f"source.group: other consumers use {group!r} now ({members}); a pipeline needs its own group. "
            f"(A killed consumer counts until its session times out.)"
        )


def _check_sink(admin: KafkaAdmin, key: str, sink: KafkaSink) -> None:
    check_topic_written(admin, sink.topic, f"{key}.topic")
    taken_bytes = admin.longest_record_bytes(sink.topic)
    sink.record_limit().check(sink.topic, taken_bytes, f"{key}.properties")
    if sink.guarantee == "exactly-once":
        check_transaction_timeout(admin, sink.transaction_timeout_s, f"{key}.transaction_timeout_s")
