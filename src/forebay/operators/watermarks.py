"""Behind the operator: watermarks that follow what has left it, not what has entered it."""

from __future__ import annotations

from pyflink.datastream import DataStream
from pyflink.table import DataTypes, Schema, StreamTableEnvironment

from forebay.flink_types import BYTES


def reassign_watermarks(rows: DataStream, name: str) -> DataStream:
    """The records of `TIMED` rows, with their event times and watermarks taken from the `low_ms` column.

    A keyed function forwards its input's watermark at once, so a slow request's result would come late. The
    table layer is the one place where PyFlink lets a watermark come from a column.
    """
    tables = StreamTableEnvironment.create(rows.get_execution_environment())
    schema = (
        Schema.new_builder()
        .column("time_ms", DataTypes.BIGINT())
        .column("low_ms", DataTypes.BIGINT())
        .column("record", DataTypes.STRING())
        .column_by_expression("event_time", "to_timestamp_ltz(time_ms, 3)")
        .watermark("event_time", "to_timestamp_ltz(low_ms, 3)")
        .build()
    )
    timed = tables.to_data_stream(tables.from_data_stream(rows, schema))
    return (
        timed.filter(lambda row: row[2] != "")
        .map(lambda row: row[2].encode("latin-1"), BYTES)
        .name(f"{name}: event time")
    )
