"""Tests of `soak`: what counts as growth, and how the figures of a JVM are read."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.cli.soak import show_soak
from benchmarks.run_process import PipelineProcess
from benchmarks.soak import SERIES, points, read_native, soak_picture, soak_report, trend

from benchmarks import soak
from forebay.errors import LaunchError

HEAP = """4711:
 def new generation   total 29504K, used 500K [0x1, 0x2, 0x3)
  eden space 26240K,  70% used [0x1, 0x2, 0x3)
 tenured generation   total 229376K, used 1500K [0x1, 0x2, 0x3)
   the space 229376K,  15% used [0x1, 0x2, 0x3)
 Metaspace       used 77229K, committed 78272K, reserved 1179648K
  class space    used 10063K, committed 10560K, reserved 1048576K
"""
NATIVE = """4711:
Total: reserved=2621590KB, committed=421826KB
       malloc: 50350KB #250163
       mmap:   reserved=2571240KB, committed=371476KB
-                     Class (reserved=1050181KB, committed=12165KB)
                            (classes #14622)
                            (malloc=1605KB #41971) (at peak)
-                    Thread (reserved=91547KB, committed=9199KB)
                            (threads #83)
"""


def test_jcmd_output_is_parsed() -> None:
    assert read_native(HEAP + NATIVE) == {
        "heap_mb": pytest.approx(2.048),
        "metaspace_mb": pytest.approx(79.08, abs=0.01),
        "malloc_mb": pytest.approx(51.56, abs=0.01),
        "classes": 14622,
        "threads": 83,
    }
    assert read_native(HEAP) is None
    assert read_native(NATIVE + " Metaspace       used 77229K") is None


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (lambda x: 400.0, True),
        (lambda x: 400 + 130e-6 * x, False),
        (lambda x: 400 + min(x, 400_000) * 130e-6, True),
        (lambda x: 400 - 130e-6 * x, True),
    ],
    ids=["flat", "grows", "levels off in the first half", "shrinks"],
)
def test_growth_of_the_second_half_counts(value: Callable[[int], float], level: bool) -> None:
    draw = random.Random(1)
    found = trend([(x, value(x) + draw.gauss(0, 2)) for x in range(0, 1_000_000, 5000)])
    assert found is not None
    assert found["level"] is level
    assert found["low"] < found["slope"] < found["high"]


def test_too_few_samples_have_no_trend() -> None:
    assert trend([(x, 400.0) for x in range(30)]) is None
    assert trend([(5, 400.0)] * 100) is None


def test_a_series_without_a_trend_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"events": 100, "restarts": 100, "rest": 0}

    def report() -> dict[str, Any]:
        return soak_report(
            [
                {"part": part, "events": n, "restarts": n, "hours": n, **dict.fromkeys(SERIES, 400.0)}
                for part, samples in parts.items()
                for n in range(samples)
            ]
        )

    assert not report()["level"]
    show_soak(report())
    shown = capsys.readouterr().out
    assert [shown.count(words) for words in ("not measured", "yes", "threads")] == [8, 16, 3]
    parts["rest"] = 100
    assert report()["level"]


def test_a_soak_ends_with_the_error_of_its_feeder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "POLL_S", 0.0)
    known: Any = SimpleNamespace(bootstrap="h:1", url="http://h")
    run = soak._Soak(soak.SoakOptions(), known, known, tmp_path, print)
    run._feeder.set_exception(TimeoutError("events did not accept"))
    with pytest.raises(TimeoutError, match="events did not accept"):
        run._until(lambda: False)
    with pytest.raises(LaunchError, match="no process 'jvm'"):
        run._pid("jvm")


@pytest.mark.parametrize("garbage", [False, True])
def test_garbage_is_collected_unless_it_is_measured(tmp_path: Path, garbage: bool) -> None:
    known: Any = SimpleNamespace(bootstrap="h:1", url="http://h")
    soak._Soak(soak.SoakOptions(garbage=garbage), known, known, tmp_path, print)
    assert ("GC.run" in (tmp_path / "asked").read_text().split()) is not garbage


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(measured: soak._Soak) -> None:
        measured.samples.append({"part": "rest", "events": 1, "restarts": 0, "hours": 0.0})
        raise KeyboardInterrupt

    known: Any = SimpleNamespace(bootstrap="h:1", url="http://h", connectors_from="", connectors=tmp_path)
    for name in ("kafka_to_start", "install_jar"):
        monkeypatch.setattr(soak, name, lambda *given: None)
    monkeypatch.setattr(soak, "local_kafka", lambda *given: nullcontext(known))
    monkeypatch.setattr(soak, "ReplicaProcess", lambda *given: nullcontext(known))
    monkeypatch.setattr(PipelineProcess, "kill", lambda run: set())
    monkeypatch.setattr(soak._Soak, "measure", stop)
    monkeypatch.setattr(soak, "SERIES", ())
    found = soak.measure_soak(soak.SoakOptions(), known, tmp_path, print)
    assert not found["complete"]
    assert [sample["part"] for sample in found["samples"]] == ["rest"]


def test_samples_are_drawn_by_part() -> None:
    samples = [
        {"part": part, "events": 10, "restarts": n, "hours": n / 10, **dict.fromkeys(SERIES, 100.0 + n)}
        for part in ("restarts", "rest")
        for n in range(3)
    ]
    assert points(samples, "rest", "jvm_mb") == [(0.0, 100.0), (0.1, 101.0), (0.2, 102.0)]
    assert "<svg" in soak_picture({"samples": samples}).svg()
