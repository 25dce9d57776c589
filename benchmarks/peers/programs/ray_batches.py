"""Ray Data's LLM processor for an HTTP server, after
https://docs.ray.io/en/latest/data/working-with-llms.html#openai-compatible-endpoint. Ray Data is
for bounded data: `read_kafka` only supports the trigger `once`
(https://docs.ray.io/en/latest/data/api/doc/ray.data.read_kafka.html)."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import ray
from confluent_kafka import Consumer, TopicPartition
from ray.data.llm import HttpRequestProcessorConfig, build_processor

WAIT_S = 0.05


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    options = order["options"]
    ray.init(address="local", num_cpus=options["cpus"], include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    config = HttpRequestProcessorConfig(
        url=f"{order['engine']}/v1/chat/completions",
        batch_size=options["batch_size"],
        concurrency=options["concurrency"],
        max_retries=options["max_retries"],
        base_retry_wait_time_in_s=1,
    )

    def preprocess(row: dict[str, Any]) -> dict[str, Any]:
        event = json.loads(row["value"])
        body = {
            "model": order["model"],
            "messages": [
                {"role": "system", "content": order["system"]},
                {"role": "user", "content": event["prompt"]},
            ],
            "max_tokens": order["max_tokens"],
            "temperature": 0,
        }
        return {"event_id": event["event_id"], "payload": body}

    def postprocess(row: dict[str, Any]) -> dict[str, Any]:
        answer = row["http_response"]["choices"][0]["message"]["content"]
        return {"event_id": row["event_id"], "answer": answer}

    processor = build_processor(config, preprocess=preprocess, postprocess=postprocess)
    done = Path(order["state"]) / "offset"
    begin = int(done.read_text()) if done.exists() else 0
    watcher = Consumer({"bootstrap.servers": order["bootstrap"], "group.id": order["events"]})
    topic = TopicPartition(order["events"], 0)
    while True:
        _, end = watcher.get_watermark_offsets(topic)
        if end == begin:
            time.sleep(WAIT_S)
            continue
        events = ray.data.read_kafka(
            order["events"], bootstrap_servers=order["bootstrap"], start_offset=begin, end_offset=end
        )
        processor(events).write_kafka(order["results"], order["bootstrap"])
        begin = end
        done.write_text(str(begin))


if __name__ == "__main__":
    main()
