"""PyFlink's AsyncScalarFunction in the Table API, after
https://nightlies.apache.org/flink/flink-docs-stable/docs/dev/table/functions/udfs/#asynchronous-scalar-functions
and the example `pyflink/examples/table/async/async_scalar_function.py`. PyFlink 2.3 reads every row
into the same list, and a call reads it only when it begins, on another thread: by then the list has
a later row (https://issues.apache.org/jira/browse/FLINK-39532; `shared_row.py` shows it)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
from flink_tables import create_topics, table_environment
from pyflink.table import DataTypes
from pyflink.table.udf import AsyncScalarFunction, udf


class Ask(AsyncScalarFunction):
    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._session: aiohttp.ClientSession | None = None

    async def eval(self, prompt: str) -> str:
        if self._session is None:  # Not in `open`, which does not run on the calls' event loop.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body = {
            "model": self._order["model"],
            "messages": [
                {"role": "system", "content": self._order["system"]},
                {"role": "user", "content": prompt},
            ],
            "max_tokens": self._order["max_tokens"],
            "temperature": 0,
        }
        url = f"{self._order['engine']}/v1/chat/completions"
        async with self._session.post(url, json=body, raise_for_status=True) as response:
            answer: str = (await response.json())["choices"][0]["message"]["content"]
        return answer


class AskWithOwnRow(Ask):
    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickled in the worker, just before it takes the method that is replaced here."""
        from pyflink.fn_execution.table.async_function.operations import AsyncScalarFunctionOperation

        self.__dict__.update(state)
        shared = AsyncScalarFunctionOperation.process_element
        if shared.__name__ == "process_element":

            def process_copy(operation: Any, row: list[Any]) -> None:
                shared(operation, list(row))

            AsyncScalarFunctionOperation.process_element = process_copy


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    tables = table_environment(
        order,
        {
            "python.fn-execution.bundle.time": str(order["options"]["bundle_ms"]),
            "python.fn-execution.bundle.size": str(order["options"]["bundle_size"]),
            # https://nightlies.apache.org/flink/flink-docs-stable/docs/dev/table/config/
            "table.exec.async-scalar.max-concurrent-operations": str(order["capacity"]),
            "table.exec.async-scalar.timeout": "300 s",
            "table.exec.async-scalar.retry-strategy": "FIXED_DELAY",
            "table.exec.async-scalar.retry-delay": "1 s",
            "table.exec.async-scalar.max-attempts": "100",
        },
    )
    create_topics(tables, order)
    ask = AskWithOwnRow(order) if order["options"]["copy_rows"] else Ask(order)
    tables.create_temporary_function("ask", udf(ask, result_type=DataTypes.STRING()))
    tables.execute_sql("INSERT INTO results SELECT event_id, ask(prompt) FROM events").wait()


if __name__ == "__main__":
    main()
