from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import in_virtual_time

from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.engine import ALWAYS, FIRST_RETRIES, MAX_RETRIES, SHARE, FleetEngine, RetryBudget
from forebay.fleet.routing_request import RoutingRequest
from forebay.records import Request
from forebay.testing.replica import FakeReplica, ReplicaScript


async def _settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


class Repeats:
    """Repeats that begin as soon as they may, and last until they are ended."""

    def __init__(self, budget: RetryBudget) -> None:
        self._budget = budget
        self._ends: dict[int, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.begun: list[int] = []
        self.refused: list[int] = []

    def ask(self, number: int, left_s: float = float("inf")) -> None:
        self._ends[number] = asyncio.Event()
        self._tasks.append(asyncio.get_running_loop().create_task(self._one(number, left_s)))

    async def _one(self, number: int, left_s: float) -> None:
        async with self._budget.repeat(left_s) as turn:
            (self.begun if turn else self.refused).append(number)
            if turn:
                await self._ends[number].wait()

    def end(self, number: int) -> None:
        self._ends[number].set()

    async def cancel(self, number: int) -> None:
        self._tasks[number].cancel()
        await asyncio.gather(self._tasks[number], return_exceptions=True)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@in_virtual_time
async def test_retries_without_successes_start_with_a_few_then_trickle() -> None:
    repeats = Repeats(RetryBudget(lambda: False))
    for number in range(100):
        repeats.ask(number)
    await _settle()
    allowed = int(FIRST_RETRIES) + ALWAYS
    assert repeats.begun == list(range(allowed)), "in order"
    repeats.end(allowed - 1)
    await _settle()
    assert repeats.begun[allowed:] == [allowed], "one of the few has ended"
    repeats.end(0)
    await _settle()
    assert len(repeats.begun) == allowed + 1, "what was paid for gives nothing back"
    await repeats.close()


@in_virtual_time
async def test_successes_earn_a_bounded_share_of_retries() -> None:
    budget = RetryBudget(lambda: False)
    for _ in range(10 * int(MAX_RETRIES / SHARE)):
        budget.succeeded()
    repeats = Repeats(budget)
    for number in range(300):
        repeats.ask(number)
    await _settle()
    most = int(MAX_RETRIES) + ALWAYS
    assert len(repeats.begun) == most
    for _ in range(round(2 / SHARE)):
        budget.succeeded()
    await _settle()
    assert len(repeats.begun) - most in (1, 2), "as rounding has it"
    await repeats.close()


@in_virtual_time
async def test_retries_are_free_if_no_first_call_waits() -> None:
    idle = False
    budget = RetryBudget(lambda: idle)
    repeats = Repeats(budget)
    for number in range(50):
        repeats.ask(number)
    await _settle()
    before = len(repeats.begun)
    idle = True
    for number in range(before, 50):
        assert len(repeats.begun) == number
        budget.wake()
        await _settle()
    assert len(repeats.begun) == 50
    await repeats.close()


@in_virtual_time
async def test_expired_waiter_fails_without_taking_a_turn() -> None:
    budget = RetryBudget(lambda: False)
    async with AsyncExitStack() as held:
        for _ in range(int(FIRST_RETRIES)):
            assert await held.enter_async_context(budget.repeat(1.0))
        repeats = Repeats(budget)
        for number in range(ALWAYS):
            repeats.ask(number)
        repeats.ask(ALWAYS, left_s=5.0)
        repeats.ask(ALWAYS + 1)
        await asyncio.sleep(6.0)
        assert repeats.refused == [ALWAYS]
        repeats.end(0)
        await _settle()
        assert repeats.begun[-1] == ALWAYS + 1
        await repeats.close()


@given(
    events=st.lists(
        st.tuples(st.sampled_from(["ask", "end", "cancel", "succeed", "pass"]), st.integers(0, 60)),
        max_size=150,
    )
)
@in_virtual_time
async def test_retries_never_exceed_their_share(events: list[tuple[str, int]]) -> None:
    budget = RetryBudget(lambda: False)
    repeats = Repeats(budget)
    asked = succeeded = 0
    for what, number in events:
        if what == "ask":
            repeats.ask(asked, left_s=float(number) or float("inf"))
            asked += 1
        elif what == "succeed":
            for _ in range(number):
                budget.succeeded()
            succeeded += number
        elif what == "pass":
            await asyncio.sleep(number)
        elif asked and what == "end":
            repeats.end(number % asked)
        elif asked:
            await repeats.cancel(number % asked)
        await _settle()
        ended = sum(task.done() for task in repeats._tasks)
        assert len(repeats.begun) <= FIRST_RETRIES + SHARE * succeeded + ALWAYS + ended
    assert len(set(repeats.begun)) == len(repeats.begun)
    for number in range(asked):
        repeats.end(number)
    for _ in range(asked):
        await _settle()
    assert all(task.done() for task in repeats._tasks), "each had its turn, or its time was over"


async def test_request_keeps_its_place_and_keys_take_turns_by_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[RoutingRequest] = []
    async with FakeReplica(ReplicaScript(models=("m",))) as replica:
        engine = FleetEngine(FleetConfig(FixedReplicas((replica.url,)), model="m"))
        demand = engine.client.demand
        monkeypatch.setattr(
            engine.client, "demand", lambda *words, **more: made.append(demand(*words, **more)) or made[-1]
        )
        plain = Request("1", "m", prompt="x", session="ann")
        asked = (plain, replace(plain, service="alarm", due_s=123.0), replace(plain, session=None))
        for request in asked:
            await engine.complete(request, timeout_s=10.0)
        assert not engine.client.sent
        await engine.close()
    assert [each.due_s for each in made] == [math.inf, 123.0, math.inf]
    assert all(each.keeps_place for each in made)
    assert made[0].tenant != made[1].tenant
    assert [each.session for each in made] == ["ann", "ann", None]
    assert made[2].tenant is None
