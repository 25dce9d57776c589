"""Quix Streams with a hand-written asynchronous consumer, on its consumer and producer:
https://quix.io/docs/quix-streams/api-reference/application.html (`get_consumer`, `get_producer`).
Offsets are committed once every earlier event has its result, for at-least-once as in
https://quix.io/docs/quix-streams/configuration.html."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
from confluent_kafka import TopicPartition
from quixstreams import Application

COMMIT_S = 1.0


class Offsets:
    """Tracks finished offsets; the first unfinished one may be committed."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._next = 0

    def begin(self, offset: int) -> None:
        self._open.add(offset)
        self._next = offset + 1

    def end(self, offset: int) -> None:
        self._open.remove(offset)

    def done(self) -> int:
        return min(self._open, default=self._next)


async def answer(session: aiohttp.ClientSession, order: dict[str, Any], prompt: str) -> str | None:
    body = {
        "model": order["model"],
        "messages": [{"role": "system", "content": order["system"]}, {"role": "user", "content": prompt}],
        "max_tokens": order["max_tokens"],
        "temperature": 0,
    }
    for _ in range(100):
        try:
            async with session.post(f"{order['engine']}/v1/chat/completions", json=body) as response:
                if response.status == 429:
                    await asyncio.sleep(float(response.headers.get("Retry-After", 1)))
                    continue
                response.raise_for_status()
                text: str = (await response.json())["choices"][0]["message"]["content"]
                return text
        except aiohttp.ClientError:
            await asyncio.sleep(1)
    return None


async def main(order: dict[str, Any]) -> None:
    app = Application(
        broker_address=order["bootstrap"],
        consumer_group=order["events"],
        auto_offset_reset="earliest",
        auto_create_topics=False,
    )
    loop = asyncio.get_running_loop()
    offsets, places, tasks = Offsets(), asyncio.Semaphore(order["capacity"]), set()
    connector = aiohttp.TCPConnector(limit=0)
    with app.get_consumer(auto_commit_enable=False) as consumer, app.get_producer() as producer:
        consumer.subscribe([order["events"]])
        async with aiohttp.ClientSession(connector=connector) as session:

            async def handle(offset: int, event: dict[str, str]) -> None:
                text = await answer(session, order, event["prompt"])
                delivered = loop.create_future()

                def on_delivery(error: Any, _: Any) -> None:
                    outcome = delivered.set_exception if error else delivered.set_result
                    loop.call_soon_threadsafe(outcome, error)

                producer.produce(
                    order["results"],
                    json.dumps({"event_id": event["event_id"], "answer": text}).encode(),
                    on_delivery=on_delivery,
                )
                await delivered
                offsets.end(offset)
                places.release()

            async def commit() -> None:
                while True:
                    await asyncio.sleep(COMMIT_S)
                    at = TopicPartition(order["events"], 0, offsets.done())
                    await asyncio.to_thread(consumer.commit, offsets=[at], asynchronous=False)

            async def deliver() -> None:
                while True:
                    producer.poll(0)
                    await asyncio.sleep(0.002)

            tasks |= {asyncio.create_task(commit()), asyncio.create_task(deliver())}
            while True:
                message = await asyncio.to_thread(consumer.poll, 0.1)
                if message is None or message.error():
                    continue
                await places.acquire()
                offsets.begin(message.offset())
                task = asyncio.create_task(handle(message.offset(), json.loads(message.value())))
                tasks.add(task)
                task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
