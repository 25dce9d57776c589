from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock

from forebay.flink.one_core import AGAIN_S, FIRST_HOLD_S, MAX_HOLD_S, CoreChoice, CoreSample, OneCore


def free(rate: float = 1000.0, used: float = 1.0) -> CoreSample:
    return CoreSample(used, rate, {0: used / 2 + 0.05, 1: used / 2})


def pinned(rate: float = 2000.0, used: float = 1.0, others: float = 0.0) -> CoreSample:
    return CoreSample(used, rate, {0: 0.1, 1: used + others})


def kept(used: float = 1.0) -> CoreChoice:
    """A choice that has kept core 1 since second 2."""
    choice = CoreChoice()
    assert choice.next(0.0, free(used=used)) == 1, "a trial"
    assert choice.next(1.0, pinned(used=used)) is None, "compared with all cores again"
    assert choice.next(2.0, free(used=used)) == 1
    return choice


def test_a_core_is_kept_if_answers_cost_less_on_it() -> None:
    choice = kept()
    assert {choice.next(float(second), pinned()) for second in range(3, 200)} == {1}


@pytest.mark.parametrize("trial", [pinned(1000.0), pinned(1100.0), pinned(900.0, used=0.6)], ids=str)
def test_a_trial_that_gains_too_little_ends_and_the_next_one_waits(trial: CoreSample) -> None:
    choice = CoreChoice()
    trials: list[int] = []
    for second in range(10_000):
        on_core = trials and trials[-1] == second - 1
        if choice.next(float(second), trial if on_core else free()) is not None:
            trials.append(second)
    waits = [later - earlier for earlier, later in pairwise(trials)]
    assert waits[0] == FIRST_HOLD_S + 1
    assert waits == sorted(waits)
    assert waits[-1] == MAX_HOLD_S + 1


def test_a_job_that_warms_up_is_not_mistaken_for_a_gain() -> None:
    choice = CoreChoice()
    assert choice.next(0.0, free(1000.0)) == 1
    assert choice.next(1.0, pinned(1200.0)) is None
    assert choice.next(2.0, free(1400.0)) is None
    assert choice.next(3.0, free(1400.0)) is None


@pytest.mark.parametrize(
    "leaving",
    [pinned(others=0.7), CoreSample(0.1, 200.0, {0: 0.1, 1: 0.1}), pinned(rate=50.0), pinned(rate=0.0)],
    ids=["others need it", "little use", "few answers", "no answers"],
)
def test_a_core_is_left(leaving: CoreSample) -> None:
    assert kept().next(3.0, leaving) is None


def test_the_gain_is_compared_again() -> None:
    choice = kept()
    pins = [choice.next(float(second), pinned()) for second in range(3, int(AGAIN_S) + 3)]
    assert pins == [1] * (len(pins) - 1) + [None]
    assert choice.next(AGAIN_S + 3, free(1900.0)) == 1
    assert choice.next(AGAIN_S + 4, pinned()) is None
    assert choice.next(AGAIN_S + 5, free(1900.0)) is None, "it no longer gains a tenth"


def test_a_core_that_becomes_full_is_compared_with_all_once() -> None:
    choice = kept(used=0.6)
    assert choice.next(3.0, pinned(3000.0)) is None
    assert choice.next(4.0, free(2500.0)) == 1
    assert choice.next(5.0, pinned(3000.0)) is None
    assert choice.next(6.0, free(2500.0)) == 1
    assert choice.next(7.0, pinned(3000.0)) == 1


@pytest.mark.parametrize(
    "sample",
    [
        CoreSample(0.4, 1000.0, {0: 0.2, 1: 0.2}),
        CoreSample(1.0, 50.0, {0: 0.5, 1: 0.5}),
        CoreSample(0.9, 1000.0, {0: 1.0, 1: 1.0}),
        CoreSample(1.0, 1000.0, {0: 0.5}),
    ],
    ids=["little use", "few answers", "cores that others use", "one core"],
)
def test_all_cores_stay_allowed(sample: CoreSample) -> None:
    assert CoreChoice().next(0.0, sample) is None


@given(
    st.lists(
        st.builds(
            CoreSample,
            st.floats(0, 4),
            st.floats(0, 1e5),
            st.dictionaries(st.integers(0, 3), st.floats(0, 2), max_size=4),
        )
    )
)
def test_only_a_core_that_exists_is_chosen(samples: list[CoreSample]) -> None:
    choice, seen = CoreChoice(), set[int]()
    for second, sample in enumerate(samples):
        seen |= set(sample.busy)
        assert choice.next(float(second), sample) in {None, *seen}


class Machine:
    """A /proc of two cores. `run` advances it by a second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(monotonic_s=100.0)
        self.core = OneCore(folder, self.clock)
        self.ticks = dict.fromkeys(sorted(os.sched_getaffinity(0))[:2], 0)
        self.used_s: dict[int, float] = {}

    def add(self, thread: int) -> None:
        self.used_s[thread] = 0.0
        self.write()

    def run(self, answers: int, *, busy: tuple[float, float]) -> bool:
        self.clock.advance(1.0)
        for thread in self.used_s:
            self.used_s[thread] += 1.0 / len(self.used_s)
        for core, share in zip(self.ticks, busy, strict=True):
            self.ticks[core] += int(100 * share)
        self.write()
        return self.core.look(answers)

    def write(self) -> None:
        lines = [f"cpu{core} {busy} 0 0 9999 77 0 0 0 5 5\n" for core, busy in self.ticks.items()]
        (self.folder / "stat").write_text("cpu 1 2 3 4 5 6 7 8 9 10\n" + "".join(lines) + "intr 1\n")
        for thread, used_s in self.used_s.items():
            place = self.folder / "self/task" / str(thread)
            place.mkdir(parents=True, exist_ok=True)
            (place / "schedstat").write_text(f"{int(used_s * 1e9)} 0 0\n")


ALL = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@contextmanager
def member(machine: Machine) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """A thread that has joined, and calls functions."""
    with ThreadPoolExecutor(1) as thread:

        def call(function: Callable[[], Any]) -> Any:
            return thread.submit(function).result(60)

        machine.add(call(threading.get_native_id))
        call(lambda: machine.core.join(pool=True))
        yield call


def affinity() -> set[int]:
    return os.sched_getaffinity(threading.get_native_id())


def started(machine: Machine) -> tuple[threading.Thread, threading.Event]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, daemon=True)
    thread.start()
    assert thread.native_id is not None
    (machine.folder / "self/task" / str(thread.native_id)).mkdir()
    return thread, end


needs_two_cores = pytest.mark.skipif(len(ALL) < 2, reason="needs two cores, and Linux")


@needs_two_cores
def test_threads_are_placed_and_freed_with_those_that_they_started(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    second = {sorted(ALL)[1]}
    with member(machine) as call:
        machine.run(0, busy=(0.5, 0.5))
        assert call(affinity) == ALL
        machine.run(1000, busy=(0.55, 0.5))
        assert call(affinity) == second
        child, end = call(lambda: started(machine))
        assert os.sched_getaffinity(child.native_id) == second
        machine.run(2000, busy=(0.1, 1.0))
        assert (call(affinity), os.sched_getaffinity(child.native_id)) == (ALL, ALL)
        end.set()
        child.join()
        machine.run(1000, busy=(0.55, 0.5))
        assert call(affinity) == second
        assert machine.run(0, busy=(0.1, 0.1)) is False
        assert call(affinity) == ALL


@needs_two_cores
def test_the_last_look_frees_the_threads_although_another_pool_is_quiet(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with member(machine) as call:
        for busy, answers in (((0.5, 0.5), 0), ((0.55, 0.5), 1000), ((0.1, 1.0), 2000), ((0.55, 0.5), 1000)):
            machine.run(answers, busy=busy)
        assert machine.core.look(500) is True
        assert machine.run(0, busy=(0.1, 1.0)) is True, "it is still placed"
        assert machine.run(0, busy=(0.1, 0.1)) is False
        assert call(affinity) == ALL


@needs_two_cores
def test_a_pool_that_leaves_frees_the_threads(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with member(machine) as call, member(machine) as other:
        machine.run(0, busy=(0.5, 0.5))
        machine.run(1000, busy=(0.55, 0.5))
        assert call(affinity) == other(affinity) == {sorted(ALL)[1]}
        machine.core.leave()
        assert call(affinity) == other(affinity) == ALL
        machine.run(1000, busy=(0.55, 0.5))
        assert call(affinity) != ALL, "another pool may still gain"
        machine.core.leave()
        assert call(affinity) == ALL
        machine.run(1000, busy=(0.55, 0.5))
        assert call(affinity) == ALL


def test_a_machine_without_these_files_is_left_alone(tmp_path: Path) -> None:
    core = OneCore(tmp_path)
    core.join(pool=True)
    assert core.look(1000) is True
    assert core.look(0) is False
    core.leave()
    assert not hasattr(os, "sched_getaffinity") or os.sched_getaffinity(0) == ALL
