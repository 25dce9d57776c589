"""Runs operators without Flink from a random schedule: helpers of the `test_any_moment` tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from tests.harness.chain import Chain, Operator
from tests.harness.keyed_state import ChosenCalls, WallClock, held_keys, set_after_round
from tests.harness.metric_group import MetricsContext

from forebay.codec import decode
from forebay.flink import backpressure, operator, shard_timers, stages
from forebay.flink.keying import Keying
from forebay.flink.request_handler import result as result_of
from forebay.records import Completion, DeadLetter, KeyedEvent, Result, Timing, Usage
from forebay.testing.answers import tokens

Action = tuple[str, int]
ACTIONS = st.one_of(
    st.tuples(st.just("read"), st.integers(1, 6)),
    st.tuples(st.just("take"), st.integers(0, 7)),
    st.tuples(st.just("take"), st.integers(0, 7)),
    st.tuples(st.just("answer"), st.integers(0, 7)),
    st.tuples(st.just("answer"), st.integers(0, 7)),
    st.tuples(st.just("pass time"), st.sampled_from((1, 7, 30, 600, 5_000))),
    st.tuples(st.just("barrier"), st.just(0)),
    st.tuples(st.just("checkpoint"), st.just(0)),
    st.tuples(st.just("crash"), st.integers(1, 3)),
    st.tuples(st.just("set clock"), st.sampled_from((-7_200_000, -1_000, 1_000, 7_200_000))),
)
SCHEDULES = st.integers(0, 120).flatmap(lambda size: st.lists(ACTIONS, min_size=size, max_size=size))
"""Lists of every length equally often: the default would average five actions."""
SHARDS = 3
FEWER = settings(max_examples=settings.default.max_examples // 4)
"""For applications that run long."""


CRASH_AT = 9
"""A run crashes once while it waits at the end of its input, after at most this many looks at its mailbox, or
never.
"""


def _unasked(item: KeyedEvent) -> Any:
    raise AssertionError("nothing here asks an engine")


class Crashed(BaseException):
    """The run ends here."""


@dataclass
class Runs:
    """Consecutive runs of one chain, as scheduled. Calls of its operators get `answer`."""

    operators: Callable[[Runs], Sequence[Operator]]
    elements: Sequence[tuple[Any, int | None]]
    answer: Callable[[KeyedEvent], Any] = _unasked
    clock: WallClock = field(default_factory=WallClock)
    calls: list[ChosenCalls] = field(default_factory=list)
    chain: Chain = field(init=False)
    mails_left: int = 0

    def play(self, schedule: Sequence[Action]) -> tuple[Any, ...]:
        """Return all committed outputs once the last run ends."""
        self.mails_left = len(schedule) % CRASH_AT
        with pytest.MonkeyPatch.context() as patch:
            self._outside_the_jvm(patch)
            return self._play(schedule)

    def _play(self, schedule: Sequence[Action]) -> tuple[Any, ...]:
        self._start(1, None)
        for action, number in (*schedule, ("finish", 0)):
            try:
                self._do(action, number)
            except Crashed:
                self._start(1 + number % 3, self.chain.newest)
        self.chain.finish()
        return self.chain.outputs

    def _do(self, action: str, number: int) -> None:
        match action:
            case "read":
                for _ in range(number):
                    self.chain.read()
            case "take":
                for _ in range(3):
                    if ready := self.chain.ready():
                        self.chain.take(*ready[number % len(ready)])
            case "answer" if self.calls:
                self.calls[number % len(self.calls)].answer(number)
            case "pass time":
                self.chain.pass_time(number / 1000)
            case "barrier":
                self.chain.begin_checkpoint()
            case "checkpoint":
                self.chain.checkpoint_at_once()
            case "set clock":
                self.clock.step(number)
            case "crash":
                self._start(number, self.chain.newest)
            case "finish":
                self.chain.finish()

    def run_mails(self, subtask: Any) -> None:
        """Run the mails of a subtask's task, and the outside world."""
        key = subtask.key
        self.chain.checkpoint_at_once()
        self.mails_left -= 1
        if self.mails_left == 0:
            raise Crashed
        self.chain.pass_time(0.03)
        subtask.key = key

    def _start(self, parallelism: int, restored: Any) -> None:
        self.calls = []
        self.chain = Chain(
            self.operators(self),
            self.elements,
            self.clock,
            parallelism=parallelism,
            restored=restored,
            while_firing=lambda: [calls.answer(0) for calls in self.calls],
        )

    def _outside_the_jvm(self, patch: pytest.MonkeyPatch) -> None:
        def calls(*given: Any, **more: Any) -> ChosenCalls:
            self.calls.append(ChosenCalls(*given, answer_to=self.answer, clock=self.clock, **more))
            return self.calls[-1]

        def mailbox(context: Any) -> Any:
            return SimpleNamespace(run_mails=lambda: self.run_mails(context._subtask))

        patch.setattr(operator, "RequestPool", calls)
        patch.setattr(operator, "Mailbox", mailbox)
        patch.setattr(backpressure, "is_cancelled", lambda: False)
        for module in (operator, stages):
            patch.setattr(module, "held_keys", held_keys)
        patch.setattr(shard_timers, "set_after_round", set_after_round)
        # So that snapshots are taken within a run of some dozens of inputs.
        patch.setattr(stages, "MIN_LOG_BYTES", 256)


async def nobody(_counts: Any) -> Any:
    """Opens nothing: the test answers calls."""


def keying(clock: WallClock, **settings: Any) -> Callable[[Any], Iterator[tuple[int, bytes]]]:
    function = Keying(shards=SHARDS, clock=clock, **settings)
    function.open(MetricsContext())  # type: ignore[arg-type]
    return function.flat_map


def completion(item: KeyedEvent, text: str, answer: Any) -> Result:
    message = Completion(text, "stop", Usage(0, tokens(text)), Timing(0.0, 0.0))
    return result_of(item, message, answer, attempts=1)


def divided(outputs: Sequence[Any]) -> tuple[list[Result], list[DeadLetter]]:
    results = [decode(each) for each in outputs if not isinstance(each, tuple)]
    return results, [decode(data) for tag, data in (each for each in outputs if isinstance(each, tuple))]
