"""Runs a stream with one key, and prints the time per tenth: `one_key.py FOLDER infer|stateful EVENTS`.

A separate process, so that the memory it reports is that of one job. Exits with 1 if a result is missing,
duplicated or out of order.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import FlatMapFunction, RuntimeContext
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

from forebay.codec import decode
from forebay.engine.prompt import PromptTemplate
from forebay.flink.environment import FlinkConfig, flink_environment
from forebay.flink.infer import infer, infer_stateful
from forebay.flink.request_handler import InferenceSpec
from forebay.records import Event, Message
from forebay.stateful.program import Answer, Ask, Moment, Output, Program, Step, Timer
from forebay.testing.engine import ScriptedEngine
from forebay.testing.script import Fixed

ASKED = 100
"""Share of a program's events that make a call; each waits for the one before it."""


class Forgetful(Counter[str]):
    """Keeps no counts: those of a million calls would grow without bound."""

    def __setitem__(self, id: str, calls: int) -> None:
        pass


@dataclass(frozen=True)
class Replica:
    def __call__(self) -> ScriptedEngine:
        engine = ScriptedEngine(Fixed(0.001))
        engine.calls = Forgetful()
        return engine


class Numbered(Program[int]):
    """Emits each event's number within its key; moves a timer with each."""

    def initial(self, key: str) -> int:
        return 0

    def on_event(self, state: int, event: Event, now: Moment) -> Step[int]:
        timers = {"idle": Timer(now.wall_ms + 3_600_000, "wall")}
        if state % ASKED:
            return Step(state + 1, outputs=(Output(state),), timers=timers)
        return Step(state + 1, Ask((Message("user", str(state)),)), timers=timers)

    def on_answer(self, state: int, tag: str, answer: Answer, now: Moment) -> Step[int]:
        return Step(state, outputs=(Output(state - 1),))


class InOrder(FlatMapFunction):
    """Checks the order of results, and records the time of each tenth."""

    def __init__(self, folder: Path, events: int, *, stateful: bool) -> None:
        self._folder = folder
        self._events = events
        self._stateful = stateful

    def open(self, runtime_context: RuntimeContext) -> None:
        self._next = 0
        self._began_s = time.monotonic()

    def flat_map(self, value: bytes) -> Iterator[bytes]:
        result = decode(value)
        number = result.answer if self._stateful else result.fields["n"]
        if number != self._next or result.id != str(number):
            raise ValueError(f"expected {self._next}, found {number} with the id {result.id}")
        self._next += 1
        if self._next % (self._events // 10) == 0:
            with (self._folder / "tenths").open("a") as file:
                file.write(f"{time.monotonic() - self._began_s:.2f}\n")
        yield from ()


def to_event(number: int) -> Event:
    return Event(b"", {"n": number, "text": str(number)})


def key_of(event: Event) -> str:
    return "the only one"


def id_of(event: Event) -> str:
    return str(event.fields["n"])


def main(folder: Path, kind: str, events: int) -> None:
    env = flink_environment(
        FlinkConfig(checkpoint_dir=folder / "checkpoints", checkpoint_interval_s=5.0, log_dir=folder / "logs")
    )
    numbers = env.from_source(
        NumberSequenceSource(0, events - 1), WatermarkStrategy.no_watermarks(), "numbers"
    ).set_parallelism(1)
    call = InferenceSpec(engine=Replica(), model="scripted", prompt=PromptTemplate("{{ text }}"))
    shared = {"to_event": to_event, "key": key_of, "id": id_of, "shards": 1}
    if kind == "infer":
        results = infer(numbers, call, ordering="key", **shared).results
    else:
        results = infer_stateful(numbers, Numbered(), call, **shared).results
    checked = results.flat_map(InOrder(folder, events, stateful=kind != "infer"), Types.PICKLED_BYTE_ARRAY())
    checked.set_parallelism(1).map(str, Types.STRING()).set_parallelism(1).print()
    job = env.execute_async("one key")
    jvm = psutil.Process().children(recursive=True)[0]
    ended, most_mb, most_kb, seen = job.get_job_execution_result(), 0.0, 0.0, 0
    while not ended.done():
        time.sleep(0.2)
        mb = jvm.memory_info().rss / 2**20
        most_mb = max(most_mb, mb)
        most_kb = max(most_kb, largest_kb(folder / "checkpoints"))
        tenths = tenths_of(folder)
        if len(tenths) > seen:
            seen = len(tenths)
            print(f"{events * seen // 10} events in {tenths[-1]:.1f} s, the JVM at {mb:.0f} MB", flush=True)
    ended.result()
    tenths = tenths_of(folder)
    if len(tenths) != 10:
        raise SystemExit(f"only {len(tenths)} tenths of the results came")
    print(f"{events / tenths[-1]:.0f} events/s, the JVM at most at {most_mb:.0f} MB")
    print(f"no checkpoint of more than {most_kb:.0f} kB")


def largest_kb(checkpoints: Path) -> float:
    sizes = [0]
    for metadata in checkpoints.glob("*/chk-*/_metadata"):
        with suppress(FileNotFoundError):  # It was removed meanwhile.
            sizes.append(sum(path.stat().st_size for path in metadata.parent.iterdir()))
    return max(sizes) / 1000


def tenths_of(folder: Path) -> list[float]:
    path = folder / "tenths"
    return list(map(float, path.read_text().split())) if path.exists() else []


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
