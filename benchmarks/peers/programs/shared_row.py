"""Tests whether PyFlink's AsyncScalarFunction gives each row its own answer: prints how many of
1,000 numbers are returned as another."""

from __future__ import annotations

import asyncio
import sys

from pyflink.table import DataTypes, EnvironmentSettings, TableEnvironment
from pyflink.table.udf import AsyncScalarFunction, udf

ROWS = 1000


class Echo(AsyncScalarFunction):
    async def eval(self, number: int) -> int:
        await asyncio.sleep(0.01)
        return number


def main() -> None:
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("python.executable", sys.executable)
    tables.get_config().set("parallelism.default", "1")
    tables.create_temporary_function("echo", udf(Echo(), result_type=DataTypes.BIGINT()))
    tables.execute_sql(
        "CREATE TABLE numbers (number BIGINT) WITH ('connector' = 'datagen', "
        f"'fields.number.kind' = 'sequence', 'fields.number.start' = '1', 'fields.number.end' = '{ROWS}')"
    )
    with tables.execute_sql("SELECT number, echo(number) FROM numbers").collect() as rows:
        wrong = sum(number != answer for number, answer in rows)
    print(f"{wrong} of {ROWS} rows have the answer of another row")


if __name__ == "__main__":
    main()
