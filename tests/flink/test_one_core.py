from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock

from forebay.flink.one_core import AGAIN_S, FIRST_HOLD_S, MAX_HOLD_S, SHARED, CoreChoice, CoreSample, OneCore
from forebay.flink.request_pool import RequestPool


def free(rate: float = 1000.0) -> CoreSample:
    return CoreSample(1.0, rate, {0: 0.55, 1: 0.5})


def pinned(rate: float = 2000.0, others: float = 0.0) -> CoreSample:
    return CoreSample(1.0, rate, {0: 0.1, 1: 1.0 + others})


def test_a_core_is_kept_if_answers_cost_less_on_it() -> None:
    choice = CoreChoice()
    assert [choice.next(float(second), pinned() if second else free()) for second in range(9)] == [1] * 9


@pytest.mark.parametrize("rate", [1000.0, 900.0, 1100.0])
def test_a_trial_that_gains_too_little_ends_and_the_next_one_waits(rate: float) -> None:
    choice = CoreChoice()
    trials: list[int] = []
    for second in range(10_000):
        on_one = trials and trials[-1] == second - 1
        if choice.next(float(second), pinned(rate) if on_one else free()) is not None:
            trials.append(second)
    waits = [later - earlier for earlier, later in pairwise(trials)]
    assert waits[0] == FIRST_HOLD_S + 1
    assert waits == sorted(waits)
    assert waits[-1] == MAX_HOLD_S + 1


def test_a_core_is_left_if_others_need_it_or_answers_become_rare() -> None:
    for leaving in (pinned(others=0.4), CoreSample(0.1, 200.0, {0: 0.1, 1: 0.1}), pinned(rate=50.0)):
        choice = CoreChoice()
        choice.next(0.0, free())
        assert choice.next(1.0, pinned()) == 1
        assert choice.next(2.0, leaving) is None


def test_the_gain_is_compared_again() -> None:
    choice = CoreChoice()
    choice.next(0.0, free())
    pins = [choice.next(float(second), pinned()) for second in range(1, int(AGAIN_S) + 1)]
    assert pins == [1] * (len(pins) - 1) + [None]
    assert choice.next(AGAIN_S + 1, free(1900.0)) == 1
    assert choice.next(AGAIN_S + 2, pinned()) is None, "it no longer gains a tenth"


@pytest.mark.parametrize(
    "sample",
    [
        CoreSample(0.4, 1000.0, {0: 0.2, 1: 0.2}),
        CoreSample(1.0, 50.0, {0: 0.5, 1: 0.5}),
        CoreSample(1.0, 1000.0, {0: 1.0, 1: 1.0}),
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
    choice = CoreChoice()
    core = None
    for second, sample in enumerate(samples):
        before, core = core, choice.next(float(second), sample)
        assert core is None or core == before or core in sample.busy


class Machine:
    """A /proc of two cores. `run` advances it by a second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(monotonic_s=100.0)
        self.core = OneCore(folder, self.clock)
        self.ticks = dict.fromkeys(sorted(os.sched_getaffinity(0)), 0)
        self.used_s: dict[int, float] = {}

    def add(self, thread: int) -> None:
        self.used_s[thread] = 0.0
        self.write()

    def run(self, answers: int, *, busy: tuple[float, ...]) -> None:
        self.clock.advance(1.0)
        for thread in self.used_s:
            self.used_s[thread] += 1.0 / len(self.used_s)
        for core, share in zip(self.ticks, busy, strict=False):
            self.ticks[core] += int(100 * share)
        self.write()
        self.core.look(answers)

    def write(self) -> None:
        lines = [f"cpu{core} {busy} 0 0 9999 77 0 0 0 5 5\n" for core, busy in self.ticks.items()]
        (self.folder / "stat").write_text("cpu 1 2 3 4 5 6 7 8 9 10\n" + "".join(lines) + "intr 1\n")
        for thread, used_s in self.used_s.items():
            place = self.folder / "self/task" / str(thread)
            place.mkdir(parents=True, exist_ok=True)
            (place / "schedstat").write_text(f"{int(used_s * 1e9)} 0 0\n")


@contextmanager
def waiting(body: threading.Event) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=body.wait, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        body.set()
        thread.join()


ALL = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@pytest.mark.skipif(len(ALL) < 2, reason="needs two cores, and Linux")
def test_threads_are_placed_together_and_freed(tmp_path: Path) -> None:
    machine, step, placed = Machine(tmp_path), threading.Barrier(2), []

    def member() -> None:
        thread = threading.get_native_id()
        machine.add(thread)
        machine.core.join()
        step.wait(60)
        step.wait(60)
        placed.append(os.sched_getaffinity(thread))
        with waiting(threading.Event()) as child:
            assert child.native_id is not None
            machine.add(child.native_id)
            assert os.sched_getaffinity(child.native_id) == placed[0]
            machine.run(2000, busy=(0.1, 1.0))
            placed.append(os.sched_getaffinity(child.native_id))
            del machine.used_s[child.native_id]
        step.wait(60)
        step.wait(60)
        placed.append(os.sched_getaffinity(thread))

    thread = threading.Thread(target=member, daemon=True)
    thread.start()
    step.wait(60)
    machine.run(0, busy=(0.5, 0.5))
    machine.run(1000, busy=(0.55, 0.5))
    step.wait(60)
    step.wait(60)
    machine.run(0, busy=(0.1, 0.1))
    step.wait(60)
    thread.join(60)
    assert placed == [{sorted(ALL)[1]}, ALL, ALL], "on the core, a thread it started, at the end"


def test_a_machine_without_these_files_is_left_alone(tmp_path: Path) -> None:
    core = OneCore(tmp_path)
    core.join()
    core.look(1000)
    assert not hasattr(os, "sched_getaffinity") or os.sched_getaffinity(0) == ALL


def test_the_pools_of_a_process_share_one() -> None:
    pools = [RequestPool(lambda: None, capacity=1) for _ in range(2)]  # type: ignore[arg-type, return-value]
    assert {pool._core for pool in pools} == {SHARED}
    for pool in pools:
        pool.close()
