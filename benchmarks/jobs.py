"""The two Flink jobs that are compared: Forebay's operator and PyFlink's AsyncFunction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.datastream import (
    AsyncDataStream,
    AsyncFunction,
    DataStream,
    MapFunction,
    ProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors import Source
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.java_gateway import get_gateway

from benchmarks.workload import Seen, Workload, event_id, event_of, request_of
from forebay.codec import decode, encode
from forebay.connectors.files.sink import JsonlFiles, jsonl_sink
from forebay.engine.prompt import PromptTemplate
from forebay.flink.infer import infer
from forebay.flink.request_handler import InferenceSpec
from forebay.flink.thread_mode import MODE
from forebay.flink.types import BYTES
from forebay.records import Event

TIMEOUT_S = 120.0


async def drive(load: Workload) -> list[Seen]:
    """Send every event of `load` when it is due and a slot is free; returns the answers."""
    engine = load.engine()()
    slots = asyncio.Semaphore(load.capacity)
    seen: list[Seen] = []
    start_s = time.monotonic()

    async def one(index: int, sent_s: float) -> None:
        try:
            completion = await engine.complete(request_of(load, index), timeout_s=TIMEOUT_S)
        finally:
            slots.release()
        arrived_s = time.monotonic()
        tokens = completion.usage.completion_tokens
        seen.append(Seen(index, sent_s, arrived_s, completion.timing.latency_s, tokens))

    tasks = []
    try:
        for index in range(load.events):
            if load.rate_per_s is not None:
                await asyncio.sleep(max(0.0, start_s + index / load.rate_per_s - time.monotonic()))
            sent_s = time.monotonic()
            await slots.acquire()
            tasks.append(asyncio.create_task(one(index, sent_s)))
        await asyncio.gather(*tasks)
    finally:
        await engine.close()
    return seen


def forebay_job(env: StreamExecutionEnvironment, load: Workload, out: Path) -> None:
    results = answered(numbers(env, load).map(Stamp(), BYTES), load)
    jsonl_sink(results.process(Arrive(), Types.STRING()), JsonlFiles(out))


def answered(events: DataStream, load: Workload) -> DataStream:
    """Results of `infer` for events with `text`, numbered `i`."""
    call = InferenceSpec(
        engine=load.admitted(),
        model=load.model,
        prompt=PromptTemplate("{{ text }}"),
        sampling=load.sampling(),
        timeout_s=TIMEOUT_S,
        deadline_s=4 * TIMEOUT_S,
    )
    return infer(events, call, id=_id, capacity=load.capacity, one_core=True).results


def async_function_job(env: StreamExecutionEnvironment, load: Workload, out: Path) -> None:
    """Like `forebay_job`, with `AsyncDataStream.unordered_wait` around the same client."""
    env.configure(
        Configuration()
        .set_string(MODE, "process")
        .set_string("python.fn-execution.bundle.time", str(load.async_bundle_ms))
        .set_string("python.fn-execution.bundle.size", "1000")
    )
    events = numbers(env, load).map(Stamp(), BYTES)
    answers = AsyncDataStream.unordered_wait(
        events,
        CallInAsyncFunction(load),
        Time.milliseconds(round(4 * TIMEOUT_S * 1000)),
        load.capacity,
        Types.PICKLED_BYTE_ARRAY(),
    )
    jsonl_sink(answers.process(ArriveAsync(), Types.STRING()), JsonlFiles(out))


def numbers(env: StreamExecutionEnvironment, load: Workload) -> DataStream:
    """0, 1, 2, …, paced by Flink, because a Python function that sleeps would block its bundle."""
    if load.rate_per_s is None:
        source = NumberSequenceSource(0, load.events - 1)
    else:
        jvm = get_gateway().jvm
        values = jvm.java.util.ArrayList()
        for index in range(load.events):
            values.add(str(index))
        text = Types.STRING().get_java_type_info()
        look_up = jvm.org.apache.flink.connector.datagen.functions.IndexLookupGeneratorFunction(text, values)
        pace = jvm.org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy.perSecond(
            float(load.rate_per_s)
        )
        source = Source(
            jvm.org.apache.flink.connector.datagen.source.DataGeneratorSource(
                look_up, load.events, pace, text
            )
        )
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")


class Stamp(MapFunction):
    def map(self, value: Any) -> bytes:
        return encode(event_of(int(value), time.monotonic()))


class Arrive(ProcessFunction):
    def process_element(self, value: bytes, ctx: ProcessFunction.Context) -> Iterator[str]:
        arrived_s = time.monotonic()
        result = decode(value)
        fields, usage = result.fields, result.usage
        yield Seen(fields["i"], fields["sent_s"], arrived_s, result.called_s, usage.completion_tokens).line()


class ArriveAsync(ProcessFunction):
    def process_element(
        self, value: tuple[int, float, float, int], ctx: ProcessFunction.Context
    ) -> Iterator[str]:
        arrived_s = time.monotonic()
        index, sent_s, called_s, tokens = value
        yield Seen(index, sent_s, arrived_s, called_s, tokens).line()


class CallInAsyncFunction(AsyncFunction):
    """What a PyFlink user writes today, with the same client."""

    def __init__(self, load: Workload) -> None:
        self._load = load
        self._engine: Any = None

    def open(self, runtime_context: RuntimeContext) -> None:
        self._engine = None

    async def async_invoke(self, value: bytes) -> list[tuple[int, float, float, int]]:
        if self._engine is None:
            # The client belongs to the event loop that opens it; `open` runs on another.
            self._engine = self._load.engine()()
        fields = decode(bytes(value)).fields
        completion = await self._engine.complete(request_of(self._load, fields["i"]), timeout_s=TIMEOUT_S)
        timing, usage = completion.timing, completion.usage
        return [(fields["i"], fields["sent_s"], timing.latency_s, usage.completion_tokens)]

    def timeout(self, value: bytes) -> list[Any]:
        return []


def _id(event: Event) -> str:
    return event_id(event.fields["i"])
