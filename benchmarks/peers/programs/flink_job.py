"""Shared by the Flink jobs in this folder: options, topics, exactly once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, SimpleStringSchema, WatermarkStrategy
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import DeliveryGuarantee
from pyflink.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)


def configuration(order: dict[str, Any], options: dict[str, str] | None = None) -> Configuration:
    """A checkpoint per second, kept; failed jobs are restarted, as documented at
    https://nightlies.apache.org/flink/flink-docs-stable/docs/ops/state/task_failure_recovery/."""
    values = {
        "rest.port": str(order["rest_port"]),
        "rest.bind-port": str(order["rest_port"]),
        "rest.bind-address": "127.0.0.1",
        "parallelism.default": "1",
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in order["jars"]),
        "execution.buffer-timeout.interval": "0 ms",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": Path(order["state"]).as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.unaligned.enabled": "true",
        "web.checkpoints.history": "1000",
        "restart-strategy.type": "exponential-delay",
        "restart-strategy.exponential-delay.initial-backoff": "1 s",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        **(
            {"execution.state-recovery.path": Path(order["restore_from"]).as_uri()}
            if order["restore_from"]
            else {}
        ),
        **(options or {}),
    }
    found = Configuration()
    for key, value in values.items():
        found.set_string(key, value)
    return found


def environment(order: dict[str, Any], options: dict[str, str] | None = None) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(configuration(order, options))
    env.set_python_executable(sys.executable)
    return env


def read_events(env: StreamExecutionEnvironment, order: dict[str, Any]) -> DataStream:
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(order["bootstrap"])
        .set_topics(order["events"])
        .set_group_id(order["events"])
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(SimpleStringSchema())
        .build()
    )
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "events")


def write_results(results: DataStream, order: dict[str, Any]) -> None:
    schema = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(order["results"])
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(order["bootstrap"])
        .set_record_serializer(schema)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(order["results"])
        .set_property("transaction.timeout.ms", "900000")
        .build()
    )
    results.sink_to(sink)
