"""What a task's thread changes inside a JVM, and leaves alone outside one."""

import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from tests.harness.operators import append

from forebay.flink.environment import FlinkConfig, flink_environment
from forebay.flink.jvm_task import YOUNG, barrier_look, collect_less, is_cancelled
from forebay.testing.waiting import wait_until


@pytest.fixture
def threshold() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    # Another test of this process may have acted as inside a JVM.
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_garbage_collection_is_rarer_inside_a_jvm(
    threshold: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pemja", ModuleType("pemja"))
    assert threshold[0] < YOUNG
    collect_less()
    assert gc.get_threshold() == (YOUNG, 20, 20)


def test_garbage_collection_is_unchanged_outside_a_jvm(
    threshold: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pemja", raising=False)
    collect_less()
    assert gc.get_threshold() == threshold


def test_outside_a_jvm_nothing_is_cancelled() -> None:
    assert not is_cancelled()


class BlocksUntilABarrier(KeyedProcessFunction):
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, runtime_context: RuntimeContext) -> None:
        self._look = barrier_look(runtime_context)
        append(self._path, f"open {self._look()}")

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        while not self._look() and not is_cancelled():
            time.sleep(0.001)
        append(self._path, f"event {self._look()}")
        yield from ()


@pytest.mark.flink
def test_blocked_function_sees_a_barrier_that_waits(tmp_path: Path, flink_logs: Path) -> None:
    env = flink_environment(
        FlinkConfig(checkpoint_dir=tmp_path / "state", checkpoint_interval_s=0.05, log_dir=flink_logs)
    )
    numbers = env.from_source(NumberSequenceSource(0, 2**40), WatermarkStrategy.no_watermarks(), "numbers")
    looks = tmp_path / "looks"
    numbers.key_by(lambda _: 0, Types.INT()).process(BlocksUntilABarrier(looks), Types.STRING()).print()
    job = env.execute_async("looks")
    wait_until(lambda: looks.exists() and len(looks.read_text().splitlines()) > 3)
    job.cancel().result()
    assert looks.read_text().splitlines()[:4] == ["open False", *["event True"] * 3]


def test_outside_a_jvm_no_barrier_waits(caplog: pytest.LogCaptureFixture) -> None:
    assert not barrier_look(SimpleNamespace())()  # type: ignore[arg-type]
    assert caplog.records == []


def test_flink_without_a_barriers_place_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert not barrier_look(SimpleNamespace(_runtime_context=object()))()  # type: ignore[arg-type]
    assert "checkpoints wait" in caplog.text
