"""The takeover as a model: three runs of one pipeline, and a store whose requests interleave.

Runs are paused with or without their Flink, cut off, killed and started at any moment. A request is sent,
applied and answered in separate steps; its answer can be lost, and it can be applied after its sender died.
Whatever happens, each part of the stream is committed by one job. That is checked for each of the two
defences alone.

`guard`: Flink is suspended unless the lease is held. `fences`: the names of the next checkpoints are
occupied. Without a guard, Flink's check that a name is free and its upload are one step: see
`docs/recovery.md` for the remaining risk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from forebay.clients.s3.lock import BEAT_S, HOLD_S, Claim, Lock, Seen

TICK_S = 0.25
FENCES, FAILURES = 4, 4
"""A job of the model ends after as many failed checkpoints as are fenced."""
RUNS = 3

Lineage = tuple[int, ...]
"""For each part of the stream, the job that produced its results."""


class Lost(Exception):
    """No answer, whether or not the request was applied."""


class Conflict(Exception):
    """The condition of a write was false."""


class Refused(Exception):
    """Another run is active."""


@dataclass
class Request:
    apply: Callable[[], Any]
    applied: bool = False
    answer: Any = None
    conflict: bool = False

    def deliver(self) -> None:
        if not self.applied:
            self.applied = True
            try:
                self.answer = self.apply()
            except Conflict:
                self.conflict = True


Steps = Generator[Request | None, Any, None]
"""Yields a request, or None to wait; receives its answer."""


@dataclass
class Store:
    objects: dict[Any, tuple[int, Any]] = field(default_factory=dict)
    etag: int = 0

    def get(self, key: Any) -> Request:
        return Request(lambda: self.objects.get(key))

    def put(self, key: Any, value: Any, replacing: int | None) -> Request:
        def apply() -> int:
            there = self.objects.get(key)
            if (None if there is None else there[0]) != replacing:
                raise Conflict
            return self.overwrite(key, value)

        return Request(apply)

    def overwrite(self, key: Any, value: Any) -> int:
        self.etag += 1
        self.objects[key] = (self.etag, value)
        return self.etag

    def checkpoints(self, job: int) -> Request:
        return Request(
            lambda: {
                key[2]: value
                for key, (_, value) in self.objects.items()
                if key[0] == "chk" and key[1] == job and value is not None
            }
        )


@dataclass
class World:
    guard: bool
    fences: bool
    store: Store = field(default_factory=Store)
    now_s: float = 100.0
    jobs: int = 0
    committed: dict[int, set[int]] = field(default_factory=dict)

    def commit(self, lineage: Lineage) -> None:
        for part, job in enumerate(lineage):
            self.committed.setdefault(part, set()).add(job)


class Actor:
    """Runs steps while it lives and is not paused."""

    def __init__(self, steps: Steps) -> None:
        self.steps: Steps | None = steps
        self.request: Request | None = None
        self.paused = self.cut = self.deaf = False

    def step(self) -> None:
        if self.steps is None or self.paused:
            return
        request, lost = self.request, False
        if request is not None:
            if self.cut:
                lost = True
            else:
                request.deliver()
                lost = self.deaf
        try:
            if request is None:
                self.request = next(self.steps)
            elif lost:
                self.request = self.steps.throw(Lost())
            elif request.conflict:
                self.request = self.steps.throw(Conflict())
            else:
                self.request = self.steps.send(request.answer)
        except (StopIteration, Lost, Conflict, Refused):
            # What a run does not handle ends it.
            self.end()

    def end(self) -> None:
        self.steps = None


class Run:
    """A command and its Flink. `forebay.clients.s3.lock` and `S3Store` do the same with a real store."""

    def __init__(self, world: World, name: str, *, fails: bool = False) -> None:
        self.world, self.store = world, world.store
        self.lock = Lock("p", holder=name)
        self.fails = fails
        self.unfenced = False
        self.until_s = 0.0
        self.etag = 0
        self.command = Actor(self._command())
        self.flink: Actor | None = None

    @property
    def suspended(self) -> bool:
        return self.world.guard and self.world.now_s >= self.until_s

    def step_flink(self) -> None:
        if self.flink is not None and not self.suspended:
            self.flink.step()

    def kill(self) -> None:
        self.command.end()
        self._end_flink()

    def _end_flink(self) -> None:
        if self.flink is not None:
            self.flink.end()

    def _command(self) -> Steps:
        try:
            yield from self._take()
            found = yield self.store.get("record")
            while self.world.now_s >= self.until_s:
                # It may be the record of a run that has taken over.
                yield from self._renew()
                found = yield self.store.get("record")
            record_etag, (job, restored) = (None, (None, None)) if found is None else found
            if job is not None and self.unfenced and not self.fails:
                yield from self._fence(job, 0 if restored is None else restored[1])
            if self.fails:
                lock = self.lock.renewed(released=True, unfenced=self.unfenced)
                yield self.store.put("lock", lock, self.etag)
                return
            if job is not None:
                there = yield self.store.checkpoints(job)
                if there:
                    restored = (job, max(there))
            self.world.jobs += 1
            ours = self.world.jobs
            yield self.store.put("record", (ours, restored), record_etag)
            lineage: Lineage = ()
            if restored is not None:
                found = yield self.store.get(("chk", *restored))
                lineage = found[1]
            self.flink = Actor(self._flink(ours, 0 if restored is None else restored[1], lineage))
            while True:
                yield from self._renew()
        finally:
            self._end_flink()

    def _take(self) -> Steps:
        claim = Claim()
        while True:
            sent_s = self.world.now_s
            try:
                found = yield self.store.get("lock")
                there: Lock | None = None if found is None else found[1]
                if there is not None and there.holder == self.lock.holder:
                    self.lock, self.etag, self.until_s = there, found[0], sent_s
                    break
                seen = None if there is None else Seen(str(found[0]), there.released)
                decision = claim.look(seen, self.world.now_s)
                if decision == "refuse":
                    raise Refused
                if decision == "take":
                    unfenced = there is not None and there.leaves_unfenced
                    lock = Lock("p", holder=self.lock.holder, unfenced=unfenced)
                    self.etag = yield self.store.put("lock", lock, None if found is None else found[0])
                    self.lock, self.until_s = lock, sent_s + HOLD_S
                    break
            except Conflict:
                claim = Claim()
            except Lost:
                claim.unanswered()
            due_s = self.world.now_s + TICK_S
            while self.world.now_s < due_s:
                yield None
        self.unfenced = self.lock.unfenced

    def _renew(self) -> Steps:
        due_s = self.until_s - HOLD_S + BEAT_S
        while self.world.now_s < due_s:
            yield None
        sent_s = self.world.now_s
        try:
            self.lock = self.lock.renewed(unfenced=self.unfenced)
            self.etag = yield self.store.put("lock", self.lock, self.etag)
            self.until_s = sent_s + HOLD_S
        except Lost:
            pass
        except Conflict:
            found = yield self.store.get("lock")
            if found is None or found[1].holder != self.lock.holder:
                raise
            self.etag = found[0]

    def release(self) -> None:
        """End in order, with an answer to the last write."""
        if self.command.steps is None or self.command.paused or self.command.cut:
            return
        self.kill()
        lock = self.lock.renewed(released=True, unfenced=self.unfenced)
        self.store.put("lock", lock, self.etag).deliver()

    def _fence(self, job: int, newest: int) -> Steps:
        if self.world.fences:
            fenced = None
            while True:
                there = yield self.store.checkpoints(job)
                newest = max(newest, *there, 0)
                if newest == fenced:
                    break
                for number in range(newest + 1, newest + 1 + FENCES):
                    with contextlib.suppress(Conflict):
                        yield self.store.put(("chk", job, number), None, None)
                fenced = newest
        self.unfenced = False

    def _flink(self, job: int, number: int, lineage: Lineage) -> Steps:
        self.world.commit(lineage)
        failures = 0
        while failures < FAILURES:
            number += 1
            key = ("chk", job, number)
            upload = Request(lambda key=key, value=(*lineage, job): self.store.overwrite(key, value))
            if self.world.guard:
                taken = yield self.store.get(key)
                request = None if taken else upload
            else:
                request = self.store.put(key, (*lineage, job), None)
            try:
                if request is None:
                    raise Conflict
                yield request
            except (Conflict, Lost):
                failures += 1
                continue
            failures, lineage = 0, (*lineage, job)
            yield None
            self.world.commit(lineage)


class Takeover(RuleBasedStateMachine):
    """Possible events of the runs of one pipeline."""

    guard = fences = True

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.guard, self.fences)
        self.count = 0
        self.ended: list[Run] = []
        self.runs = [self._started() for _ in range(RUNS)]
        self.time_passes(8, True)

    def _started(self, *, fails: bool = False) -> Run:
        self.count += 1
        return Run(self.world, f"run-{self.count}", fails=fails)

    run = st.integers(0, RUNS - 1)

    @rule(ticks=st.integers(1, 30), flinks=st.booleans())
    def time_passes(self, ticks: int, flinks: bool) -> None:
        for _ in range(ticks):
            self.world.now_s += TICK_S
            for run in self.runs:
                for _ in range(4):
                    run.command.step()
                for _ in range(3 if flinks else 0):
                    run.step_flink()

    @rule(number=run, steps=st.integers(1, 3))
    def command_steps(self, number: int, steps: int) -> None:
        for _ in range(steps):
            self.runs[number].command.step()

    @rule(number=run, steps=st.integers(1, 3))
    def flink_steps(self, number: int, steps: int) -> None:
        for _ in range(steps):
            self.runs[number].step_flink()

    @rule(number=run, whole=st.booleans())
    def pause(self, number: int, whole: bool) -> None:
        run = self.runs[number]
        run.command.paused = True
        if whole and run.flink is not None:
            run.flink.paused = True

    @rule(number=run, whole=st.booleans(), fails=st.booleans(), ticks=st.integers(14, 20))
    def take_over(self, number: int, whole: bool, fails: bool, ticks: int) -> None:
        """The critical start: a run pauses, and another one replaces it."""
        self.pause(number, whole)
        other = (number + 1) % RUNS
        if self.runs[other].flink is None:
            self.restart(other, False, fails)
        self.time_passes(ticks, True)

    @rule(number=run)
    def unpause(self, number: int) -> None:
        run = self.runs[number]
        for actor in filter(None, (run.command, run.flink)):
            actor.paused = False

    @rule(number=run, kind=st.sampled_from(["cut", "deaf"]), whole=st.booleans())
    def cut(self, number: int, kind: str, whole: bool) -> None:
        run = self.runs[number]
        for actor in filter(None, (run.command, run.flink if whole else None)):
            setattr(actor, kind, True)

    @rule(number=run)
    def fix(self, number: int) -> None:
        run = self.runs[number]
        for actor in filter(None, (run.command, run.flink)):
            actor.cut = actor.deaf = False

    @rule(number=run)
    def what_was_sent_is_applied(self, number: int) -> None:
        for run in (self.runs[number], *self.ended[-2:]):
            for actor in filter(None, (run.command, run.flink)):
                if actor.request is not None:
                    actor.request.deliver()

    @rule(number=run, in_order=st.booleans(), fails=st.booleans())
    def restart(self, number: int, in_order: bool, fails: bool) -> None:
        """Another run replaces one that is killed, released in order, or left paused."""
        run = self.runs[number]
        if in_order:
            run.release()
        elif not run.command.paused:
            run.kill()
        self.ended.append(run)
        self.runs[number] = self._started(fails=fails)

    @rule()
    def one_that_was_left_goes_on(self) -> None:
        for run in self.ended[-3:]:
            for actor in filter(None, (run.command, run.flink)):
                actor.paused = actor.cut = actor.deaf = False
            for _ in range(3):
                run.step_flink()
                run.command.step()

    @invariant()
    def each_part_is_committed_by_one_job(self) -> None:
        assert not [part for part, jobs in self.world.committed.items() if len(jobs) > 1]

    @invariant()
    def no_part_is_skipped(self) -> None:
        assert sorted(self.world.committed) == list(range(len(self.world.committed)))


class GuardAlone(Takeover):
    guard, fences = True, False


class FencesAlone(Takeover):
    guard, fences = False, True


class NeitherOfThem(Takeover):
    guard = fences = False


THOROUGH = settings(max_examples=4 * settings.default.max_examples, stateful_step_count=60)


@pytest.mark.heavy
@pytest.mark.parametrize("machine", [GuardAlone, FencesAlone, Takeover])
def test_one_job_commits_each_part(machine: type[Takeover]) -> None:
    run_state_machine_as_test(machine, settings=THOROUGH)


def test_a_run_that_lost_its_lease_replaces_no_record() -> None:
    """It had taken the lock, was paused, and read the record of the run that took over."""
    machine = GuardAlone()
    machine.restart(0, False, False)
    machine.pause(0, False)
    machine.restart(0, False, False)
    machine.take_over(0, whole=False, fails=True, ticks=14)
    machine.one_that_was_left_goes_on()
    machine.take_over(1, whole=False, fails=False, ticks=14)
    machine.one_that_was_left_goes_on()
    machine.take_over(2, whole=False, fails=False, ticks=15)
    machine.each_part_is_committed_by_one_job()


def test_a_job_does_not_outrun_its_fences() -> None:
    """It completes a checkpoint after those that are fenced already."""
    machine = FencesAlone()
    machine.restart(0, True, False)
    machine.restart(1, False, False)
    machine.take_over(2, whole=False, fails=True, ticks=14)
    machine.take_over(1, whole=False, fails=False, ticks=14)
    machine.flink_steps(1, 2)
    machine.time_passes(2, True)
    machine.each_part_is_committed_by_one_job()


def test_model_finds_duplicates_without_fencing() -> None:
    found = settings(THOROUGH, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(NeitherOfThem, settings=found)


def test_the_model_makes_progress() -> None:
    """A run that takes over from a killed one continues the stream."""
    machine = Takeover()
    machine.time_passes(20, True)
    before = len(machine.world.committed)
    assert before > 0
    for run in machine.runs:
        run.kill()
    machine.restart(0, False, False)
    machine.time_passes(30, True)
    assert len(machine.world.committed) > before
    assert len(set().union(*machine.world.committed.values())) == 2
