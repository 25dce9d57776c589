"""No checkpoint lacks a timer: restores a job from many checkpoints, and ends its input without another
record.

At the end, an operator emits held records only if its shard's timer fires. All operators get all records, so
each must emit the records in the checkpoint.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forebay.testing.waiting import wait_until

pytestmark = pytest.mark.flink

RECORDS = 8
RESTORED = 6
HOUR_MS = 3_600_000
OPERATORS = ("clock", "close", "wait", "infer", "stateful")


class Collects:
    """A stage that emits its input at its end or when it is closed."""

    def __init__(self, name: str, folder: Path, *, due: bool) -> None:
        self._taken: list[str] = []
        self._name, self._folder, self._due = name, folder, due

    def take(self, data: bytes) -> list[tuple[int, bytes]]:
        self._taken.append(data.decode())
        (self._folder / f"{self._name}-{data.decode()}").touch()
        return []

    def due_ms(self, data: bytes) -> int | None:
        return int(data) * 1000 + 1 if self._due else None

    def close(self, time_ms: int) -> list[tuple[int, bytes]]:
        taken, self._taken = self._taken, []
        return [(0, number.encode()) for number in taken]

    def finish(self) -> list[tuple[int, bytes]]:
        return self.close(0)

    def to_bytes(self) -> bytes:
        return ",".join(self._taken).encode()

    def restore(self, data: bytes) -> None:
        self._taken = data.decode().split(",") if data else []


@dataclass(frozen=True)
class Told:
    """Writes an operator's output to a file with its name."""

    path: Path
    name: str

    def __call__(self, number: int | bytes) -> Iterator[str]:
        from tests.harness.operators import append

        append(self.path, f"{self.name}\t{int(number)}")
        yield from ()


def start(folder: Path, run: str, logs: Path, *, ends: bool, restore_from: Path | None = None) -> Any:
    from pyflink.common import Duration, Types, WatermarkStrategy
    from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
    from tests.harness.operators import GatedEngineFactory
    from tests.harness.programs import Remember

    from forebay.codec import decode, encode
    from forebay.engine.prompt import PromptTemplate
    from forebay.flink.environment import FlinkConfig, flink_environment
    from forebay.flink.event_time import clocked
    from forebay.flink.infer import infer, infer_stateful
    from forebay.flink.request_handler import InferenceSpec
    from forebay.flink.shards import flink_keys
    from forebay.flink.stages import StageFunction, message, payload, staged
    from forebay.flink.types import BYTES
    from forebay.records import Event
    from forebay.stateful.stream_time import Tolerance
    from forebay.testing.engine import ScriptedEngineFactory
    from forebay.testing.script import Fixed

    config = FlinkConfig(
        checkpoint_dir=folder / "checkpoints" / run,
        checkpoint_interval_s=0.02,
        checkpoints_kept=1000,
        log_dir=logs,
        heap_mb=768,
        restore_from=restore_from,
    )
    env = flink_environment(config)
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), (folder / "in").as_uri())
    if not ends:
        files = files.monitor_continuously(Duration.of_millis(20))
    lines = env.from_source(files.build(), WatermarkStrategy.no_watermarks(), "lines").uid("lines")
    key = flink_keys(1)[0]

    def event(line: str) -> bytes:
        number = int(line)
        fields = {"n": number, "text": f"((hold:a)) {number}"}
        return encode(Event(line.encode(), fields, number * 1000, f"in@{number}"))

    def raw(one: Event) -> bytes:
        return one.raw

    def kept(name: str, *, due: bool) -> Any:
        return lambda *_: Collects(name, folder / "taken", due=due)

    events = lines.map(event, BYTES)
    told = folder / f"left-{run}"
    timed = clocked(events, raw, tolerance=Tolerance(), shards=1, name="clock")
    closing = StageFunction(kept("clock", due=True), shards=1, next_shards=1)
    waiting = StageFunction(kept("wait", due=False), shards=1, next_shards=1, wait_ms=HOUR_MS)
    messages = events.map(lambda data: message(key, decode(data).raw), BYTES)
    dues = StageFunction(kept("close", due=True), shards=1, next_shards=1)
    call = InferenceSpec(
        engine=GatedEngineFactory(folder, ScriptedEngineFactory(Fixed(0.001))),
        model="scripted",
        prompt=PromptTemplate("{{ text }}"),
    )
    asked = infer(events, call, name="infer", capacity=RECORDS)
    keyed = infer_stateful(
        events, Remember(), call, key=lambda one: str(one.fields["n"] % 3), name="stateful", capacity=RECORDS
    )
    outputs = {
        "clock": staged(timed.messages, closing, parallelism=1, name="timed").map(payload, BYTES),
        "close": staged(messages, dues, parallelism=1, name="close").map(payload, BYTES),
        "wait": staged(messages, waiting, parallelism=1, name="wait").map(payload, BYTES),
        "infer": asked.results.map(lambda data: decode(data).fields["n"]),
        "stateful": keyed.results.map(lambda data: decode(data).fields["n"]),
    }
    for name, numbers in outputs.items():
        numbers.flat_map(Told(told, name), Types.STRING()).print()
    return env.execute_async("test")


def numbered(checkpoints: Path) -> dict[int, Path]:
    found = checkpoints.glob("*/chk-*/_metadata")
    return {int(path.parent.name.removeprefix("chk-")): path.parent for path in found}


def left(path: Path) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for line in path.read_text().splitlines() if path.exists() else ():
        name, number = line.split("\t")
        numbers[name].append(int(number))
    return {name: sorted(numbers[name]) for name in OPERATORS}


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_records_in_any_checkpoint_are_emitted_at_the_end(
    tmp_path: Path, flink_logs: Path, seed: int
) -> None:
    for name in ("in", "gates", "taken"):
        (tmp_path / name).mkdir()
    first = tmp_path / "checkpoints" / "first"
    job = start(tmp_path, "first", flink_logs, ends=False)
    held: dict[int, int] = {}
    for number in range(RECORDS):
        (tmp_path / "fed").write_text(f"{number}\n")
        (tmp_path / "fed").rename(tmp_path / "in" / f"{number}")
        wait_until(lambda n=number: (tmp_path / "taken" / f"wait-{n}").exists())
        # One may be under way that began before the record came; the one after that holds it.
        newest = max(numbered(first), default=0)
        held[newest + 2] = number + 1
        wait_until(lambda newest=newest: max(numbered(first), default=0) >= newest + 3)
    job.cancel()
    with suppress(Exception):  # A cancelled job ends with an error.
        job.get_job_execution_result().result()
    assert not (tmp_path / "left-first").exists(), "something left before the restore"
    (tmp_path / "gates" / "a").touch()
    checkpoints = numbered(first)
    chosen = random.Random(seed).sample(sorted(checkpoints), RESTORED - 1)
    for chk in sorted({*chosen, max(checkpoints)}):
        run = f"after-{chk}"
        start(
            tmp_path, run, flink_logs, ends=True, restore_from=checkpoints[chk]
        ).get_job_execution_result().result()
        numbers = left(tmp_path / f"left-{run}")
        least = max((count for begun, count in held.items() if begun <= chk), default=0)
        assert numbers["infer"] == list(range(len(numbers["infer"])))
        assert len(numbers["infer"]) >= least
        assert numbers == dict.fromkeys(OPERATORS, numbers["infer"]), f"restored from checkpoint {chk}"
