"""A replica that is alone is asked for short answers in one piece, and for streams where that may matter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import LoopClock, run_virtual
from tests.harness.inside_replica import InsideReplica

from forebay.engine import Deadline
from forebay.errors import AttemptTimeout, BadRequest, PromptTooLong
from forebay.fleet.answer_form import SHORT, SURE, AnswerForm
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.engine import FleetEngine
from forebay.records import Completion, Request
from forebay.testing.script import Faults, Fixed, ReplicaScript

SCRIPT = ReplicaScript(models=("m",), delay=Fixed(0.5), chunks=4)
TIMEOUT_S = 60.0


@given(st.lists(st.floats(0, 2 * TIMEOUT_S), max_size=3 * SURE))
def test_answers_are_short_once_so_many_in_a_row_were(took_s: list[float]) -> None:
    form = AnswerForm()
    for each_s in took_s:
        form.answered(each_s, TIMEOUT_S)
    sure = len(took_s) >= SURE and all(each_s < SHORT * TIMEOUT_S for each_s in took_s[-SURE:])
    assert form.whole(alone=True) == sure
    assert not form.whole(alone=False)


class Asked(InsideReplica):
    """Notes in which form each answer was asked for; `refuses`: what it raises where it is one piece."""

    def __init__(self, script: ReplicaScript) -> None:
        super().__init__(script)
        self.whole: list[bool] = []
        self.refuses: Exception | None = None

    async def complete(
        self,
        request: Request,
        *,
        timeout_s: float,
        deadline: Deadline | None = None,
        on_content: Callable[[], None] | None = None,
        whole: bool = False,
    ) -> Completion:
        self.whole.append(whole)
        if whole and self.refuses is not None:
            raise self.refuses
        return await super().complete(
            request, timeout_s=timeout_s, deadline=deadline, on_content=on_content, whole=whole
        )


class Caller:
    """Asks a fleet of such replicas, one question at a time."""

    def __init__(self, engine: FleetEngine) -> None:
        self.engine = engine
        self.number = 0

    async def ask(self, times: int = 1, timeout_s: float = TIMEOUT_S) -> None:
        for _ in range(times):
            self.number += 1
            request = Request(f"r{self.number}", "m", prompt="what is this about?")
            await self.engine.complete(request, timeout_s=timeout_s)


@asynccontextmanager
async def calling(*urls: str) -> AsyncIterator[tuple[Caller, list[Asked]]]:
    replicas = {url: Asked(SCRIPT) for url in urls}
    clock = LoopClock(asyncio.get_running_loop())
    config = FleetConfig(FixedReplicas(urls), model="m")
    engine = FleetEngine(config, clock=clock, connect=lambda url: replicas[url])
    try:
        yield Caller(engine), list(replicas.values())
    finally:
        await engine.close()


def run(main: Callable[[], Any]) -> None:
    run_virtual(main())


def test_one_that_is_alone_is_asked_for_whole_answers_once_they_are_known_to_be_short() -> None:
    async def main() -> None:
        async with calling("http://one") as (caller, (replica,)):
            await caller.ask(SURE)
            assert not any(replica.whole)
            await caller.ask(3)
            assert replica.whole[SURE:] == [True, True, True]

    run(main)


def test_several_are_asked_for_streams() -> None:
    async def main() -> None:
        async with calling("http://one", "http://two") as (caller, replicas):
            await caller.engine.client.start()
            await asyncio.gather(*(caller.ask(SURE) for _ in range(4)))
            assert min(len(replica.whole) for replica in replicas) > SURE
            assert not any(whole for replica in replicas for whole in replica.whole)

    run(main)


def test_a_long_answer_brings_streams_back_and_it_is_not_thrown_away() -> None:
    async def main() -> None:
        async with calling("http://one") as (caller, (replica,)):
            await caller.ask(SURE)
            replica.script = replace(SCRIPT, delay=Fixed(SHORT * TIMEOUT_S))
            await caller.ask()
            replica.script = SCRIPT
            await caller.ask(SURE + 1)
            assert replica.whole == [False] * SURE + [True] + [False] * SURE + [True]

    run(main)


def test_so_does_one_that_is_given_up() -> None:
    async def main() -> None:
        async with calling("http://one") as (caller, (replica,)):
            await caller.ask(SURE)
            replica.script = replace(SCRIPT, delay=Fixed(1e6))
            with pytest.raises(AttemptTimeout):
                await caller.ask()
            replica.script = SCRIPT
            await caller.ask()
            assert replica.whole[SURE:] == [True, False]

    run(main)


def test_a_model_that_is_served_as_streams_only_is_asked_for_streams_ever_after() -> None:
    async def main() -> None:
        async with calling("http://one") as (caller, (replica,)):
            await caller.ask(SURE)
            replica.refuses = BadRequest("only streaming calls are supported")
            await caller.ask(SURE + 2)
            assert replica.whole[SURE:] == [True] + [False] * (SURE + 2)

    run(main)


def test_what_is_refused_in_both_forms_is_the_requests_own_fault() -> None:
    async def main() -> None:
        async with calling("http://one") as (caller, (replica,)):
            await caller.ask(SURE)
            replica.script = replace(SCRIPT, faults=Faults((("400", 1.0),)))
            with pytest.raises(BadRequest):
                await caller.ask()
            replica.script = SCRIPT
            await caller.ask()
            assert replica.whole[SURE:] == [True, False, True]

    run(main)


def test_a_prompt_that_is_too_long_is_so_in_any_form() -> None:
    async def main() -> None:
        async with calling("http://one") as (caller, (replica,)):
            await caller.ask(SURE)
            replica.refuses = PromptTooLong("the prompt is too long")
            with pytest.raises(PromptTooLong):
                await caller.ask()
            assert replica.whole[SURE:] == [True]

    run(main)
