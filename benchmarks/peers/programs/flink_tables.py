"""Shared by the Flink SQL jobs in this folder: the environment, and the topics as tables."""

from __future__ import annotations

from typing import Any

from flink_job import environment
from pyflink.table import StreamTableEnvironment


def table_environment(order: dict[str, Any], options: dict[str, str]) -> StreamTableEnvironment:
    return StreamTableEnvironment.create(environment(order, options))


def create_topics(tables: StreamTableEnvironment, order: dict[str, Any]) -> None:
    """Create the tables `events` and `results`; the second is written exactly once."""
    kafka = f"'connector' = 'kafka', 'properties.bootstrap.servers' = '{order['bootstrap']}'"
    tables.execute_sql(
        f"CREATE TABLE events (event_id STRING, prompt STRING) WITH ({kafka}, 'format' = 'json', "
        f"'topic' = '{order['events']}', 'properties.group.id' = '{order['events']}', "
        f"'scan.startup.mode' = 'earliest-offset')"
    )
    tables.execute_sql(
        f"CREATE TABLE results (event_id STRING, answer STRING) WITH ({kafka}, 'format' = 'json', "
        f"'topic' = '{order['results']}', 'sink.delivery-guarantee' = 'exactly-once', "
        f"'sink.transactional-id-prefix' = '{order['results']}', "
        f"'properties.transaction.timeout.ms' = '900000')"
    )
