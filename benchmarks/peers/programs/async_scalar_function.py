"""PyFlink's AsyncScalarFunction in the Table API, after
https://nightlies.apache.org/flink/flink-docs-stable/docs/dev/table/functions/udfs/#asynchronous-scalar-functions
and the example `pyflink/examples/table/async/async_scalar_function.py`."""

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
        if self._session is None:  # Not in `open`, which does not run on the loop of the calls.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body = {
            "model": self._order["model"],
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self._order["max_tokens"],
        }
        url = f"{self._order['engine']}/v1/chat/completions"
        async with self._session.post(url, json=body, raise_for_status=True) as response:
            answer: str = (await response.json())["choices"][0]["message"]["content"]
        return answer


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
    tables.create_temporary_function("ask", udf(Ask(order), result_type=DataTypes.STRING()))
    tables.execute_sql("INSERT INTO results SELECT event_id, ask(prompt) FROM events").wait()


if __name__ == "__main__":
    main()
