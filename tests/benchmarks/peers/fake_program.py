"""A minimal peer: reads from the beginning of the topic at each start, one request at a time."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, Producer

order = json.loads(Path(sys.argv[1]).read_text())
options = order["options"]
consumer = Consumer(
    {"bootstrap.servers": order["bootstrap"], "group.id": order["events"], "auto.offset.reset": "earliest",
     "enable.auto.commit": False}
)  # fmt: skip
consumer.subscribe([order["events"]])
producer = Producer({"bootstrap.servers": order["bootstrap"], "linger.ms": 0})
while True:
    message = consumer.poll(1.0)
    if message is None or message.error():
        continue
    event = json.loads(message.value())
    if event["event_id"] in options.get("skips", ()):
        continue
    if event["event_id"] == options.get("ends_at"):
        sys.exit("this peer gave up")
    body = {"model": order["model"], "messages": [{"role": "user", "content": event["prompt"]}]}
    request = urllib.request.Request(
        f"{order['engine']}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)["choices"][0]["message"]["content"]
    if event["event_id"] in options.get("gives_up", ()):
        answer = None
    producer.produce(order["results"], json.dumps({"id": event["event_id"], "answer": answer}))
    producer.flush()
