"""Flink for a program."""

from __future__ import annotations

from pyflink.datastream import StreamExecutionEnvironment

from forebay.flink.environment import FlinkConfig, flink_environment


def environment() -> StreamExecutionEnvironment:
    """An environment with Flink inside this process."""
    return flink_environment(FlinkConfig())
