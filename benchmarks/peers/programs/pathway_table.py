"""Pathway with a fully asynchronous UDF, after
https://pathway.com/developers/user-guide/data-transformation/user-defined-functions/ and, for what survives a
restart, https://pathway.com/developers/user-guide/deployment/persistence/."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import aiohttp
import pathway as pw


class Event(pw.Schema):
    event_id: str = pw.column_definition(primary_key=True)
    prompt: str


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    sessions: list[aiohttp.ClientSession] = []

    @pw.udf(
        executor=pw.udfs.fully_async_executor(
            capacity=order["capacity"],
            timeout=300.0,
            retry_strategy=pw.udfs.FixedDelayRetryStrategy(max_retries=100, delay_ms=1000),
            autocommit_duration_ms=order["options"]["autocommit_ms"],
        )
    )
    async def ask(prompt: str) -> str:
        if not sessions:  # On the calls' event loop.
            sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        body = {
            "model": order["model"],
            "messages": [{"role": "system", "content": order["system"]}, {"role": "user", "content": prompt}],
            "max_tokens": order["max_tokens"],
            "temperature": 0,
        }
        url = f"{order['engine']}/v1/chat/completions"
        async with sessions[0].post(url, json=body, raise_for_status=True) as response:
            answer: str = (await response.json())["choices"][0]["message"]["content"]
        return answer

    settings = {
        "bootstrap.servers": order["bootstrap"],
        "group.id": order["events"],
        "auto.offset.reset": "earliest",
    }
    events = pw.io.kafka.read(
        settings,
        topic=order["events"],
        schema=Event,
        format="json",
        autocommit_duration_ms=order["options"]["autocommit_ms"],
        name="events",
    )
    results = events.select(pw.this.event_id, answer=ask(pw.this.prompt)).await_futures()
    pw.io.kafka.write(results, settings, topic_name=order["results"], format="json")
    pw.run(
        monitoring_level=pw.MonitoringLevel.NONE,
        persistence_config=pw.persistence.Config(
            pw.persistence.Backend.filesystem(order["state"]), snapshot_interval_ms=1000
        ),
    )


if __name__ == "__main__":
    main()
