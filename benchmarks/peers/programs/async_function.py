"""PyFlink's AsyncFunction, after
https://nightlies.apache.org/flink/flink-docs-stable/docs/dev/python/datastream/operators/asyncio/ and the
example `pyflink/examples/datastream/asyncio/remote_model_inference.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
from flink_job import environment, read_events, write_results
from pyflink.common import Time, Types
from pyflink.datastream import AsyncDataStream, AsyncFunction, AsyncRetryStrategy, async_retry_predicates


class Ask(AsyncFunction):
    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._session: aiohttp.ClientSession | None = None

    async def async_invoke(self, value: str) -> list[str]:
        if self._session is None:  # Not in `open`, which does not run on the calls' event loop.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        event = json.loads(value)
        body = {
            "model": self._order["model"],
            "messages": [
                {"role": "system", "content": self._order["system"]},
                {"role": "user", "content": event["prompt"]},
            ],
            "max_tokens": self._order["max_tokens"],
            "temperature": 0,
        }
        url = f"{self._order['engine']}/v1/chat/completions"
        async with self._session.post(url, json=body, raise_for_status=True) as response:
            answer = (await response.json())["choices"][0]["message"]["content"]
        return [json.dumps({"event_id": event["event_id"], "answer": answer})]

    def timeout(self, value: str) -> list[str]:
        return [json.dumps({"event_id": json.loads(value)["event_id"], "answer": None})]


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    env = environment(
        order,
        {
            # https://nightlies.apache.org/flink/flink-docs-stable/docs/dev/python/python_config/
            "python.fn-execution.bundle.time": str(order["options"]["bundle_ms"]),
            "python.fn-execution.bundle.size": str(order["options"]["bundle_size"]),
        },
    )
    results = AsyncDataStream.unordered_wait_with_retry(
        read_events(env, order),
        Ask(order),
        Time.seconds(300),
        # Like the example.
        AsyncRetryStrategy.fixed_delay(
            max_attempts=100,
            backoff_time_millis=1000,
            result_predicate=None,
            exception_predicate=async_retry_predicates.has_exception_predicate,
        ),
        order["capacity"],
        Types.STRING(),
    )
    write_results(results, order)
    env.execute("peer")


if __name__ == "__main__":
    main()
