"""Beam's RunInference with a handler for a remote model, after
https://beam.apache.org/documentation/ml/about-ml/ and the docstring of `RemoteModelHandler`. So a
splittable DoFn reads the topic, after
https://beam.apache.org/documentation/programming-guide/#splittable-dofns, and commits its offsets
once the runner has the bundle's outputs (`BundleFinalizerParam`)."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import apache_beam as beam
import confluent_kafka
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.ml.inference.base import PredictionResult, RemoteModelHandler, RunInference
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.utils.timestamp import Duration

END = 2**62


class Client:
    """Requests the answers of a batch concurrently."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order

    async def ask_all(self, batch: Sequence[dict[str, str]]) -> list[str]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def ask(event: dict[str, str]) -> str:
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
                async with session.post(url, json=body, raise_for_status=True) as response:
                    answer: str = (await response.json())["choices"][0]["message"]["content"]
                    return answer

            return await asyncio.gather(*map(ask, batch))


class Ask(RemoteModelHandler):
    def __init__(self, order: dict[str, Any]) -> None:
        options = order["options"]
        super().__init__(
            namespace="peer",
            num_retries=options["num_retries"],
            throttle_delay_secs=options["throttle_delay_secs"],
        )
        self._order = order

    def batch_elements_kwargs(self) -> dict[str, Any]:
        # All available records at a time: a batch ends with its bundle.
        return {"min_batch_size": self._order["capacity"], "max_batch_size": self._order["capacity"]}

    def create_client(self) -> Client:
        return Client(self._order)

    def request(
        self, batch: Sequence[dict[str, str]], model: Client, inference_args: dict[str, Any] | None = None
    ) -> list[PredictionResult]:
        answers = asyncio.run(model.ask_all(batch))
        return [PredictionResult(event, answer) for event, answer in zip(batch, answers, strict=True)]


class FromCommitted(RestrictionProvider):
    """Starts at the committed offset."""

    def initial_restriction(self, element: dict[str, Any]) -> OffsetRange:
        consumer = _consumer(element)
        (at,) = consumer.committed([confluent_kafka.TopicPartition(element["events"], 0)], 30)
        consumer.close()
        return OffsetRange(max(0, at.offset), END)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: dict[str, Any], restriction: OffsetRange) -> int:
        return 1


class ReadTopic(beam.DoFn):
    """Emits the records that have arrived, then asks the runner to call it again."""

    def __init__(self) -> None:
        self._reader: Any = None

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        order: dict[str, Any],
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(FromCommitted()),  # noqa: B008
    ) -> Iterator[dict[str, str]]:
        if self._reader is None:
            self._reader = _consumer(order)
            begin = tracker.current_restriction().start
            self._reader.assign([confluent_kafka.TopicPartition(order["events"], 0, begin)])
        done = None
        until_s = time.monotonic() + order["options"]["poll_s"]
        while (message := self._reader.poll(max(0.0, until_s - time.monotonic()))) is not None:
            if message.error() or not tracker.try_claim(message.offset()):
                break
            done = message.offset() + 1
            yield json.loads(message.value())
        if done is not None:
            at = confluent_kafka.TopicPartition(order["events"], 0, done)
            finalizer.register(lambda: self._reader.commit(offsets=[at], asynchronous=False))
        tracker.defer_remainder(Duration(0))


class WriteTopic(beam.DoFn):
    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order

    def setup(self) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": self._order["bootstrap"]})

    def process(self, result: PredictionResult) -> None:
        value = {"event_id": result.example["event_id"], "answer": result.inference}
        self._producer.produce(self._order["results"], json.dumps(value))

    def finish_bundle(self) -> None:
        self._producer.flush()


def _consumer(order: dict[str, Any]) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": order["bootstrap"],
            "group.id": order["events"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    options = PipelineOptions(["--streaming", f"--runner={order['options']['runner']}"])
    with beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | beam.Create([order])
            | beam.ParDo(ReadTopic())
            | RunInference(Ask(order))
            | beam.ParDo(WriteTopic(order))
        )


if __name__ == "__main__":
    main()
