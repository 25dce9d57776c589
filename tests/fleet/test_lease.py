"""A place at a replica that decodes what another one prefills: its times begin when the prompt is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.harness.clock import LoopClock, run_virtual
from tests.harness.inside_replica import InsideReplica

from forebay.engine import Deadline
from forebay.errors import AttemptTimeout
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.engine import FleetEngine
from forebay.records import Completion, Request
from forebay.testing.script import Faults, Fixed, ReplicaScript

TIMEOUT_S = 5.0
FIRST_TOKEN_S = 4.0
SCRIPT = ReplicaScript(models=("m",), delay=Fixed(FIRST_TOKEN_S), decode=Fixed(2.0))
HANGS = ReplicaScript(models=("m",), faults=Faults((("hang", 1.0),)))


class Decoding:
    """A fleet of one replica, and requests with prefills of a set time elsewhere; in virtual time."""

    def __init__(self) -> None:
        self.replica = InsideReplica(SCRIPT)
        self.clock = LoopClock(asyncio.get_running_loop())
        config = FleetConfig(FixedReplicas(("http://decode:1",)), model="m")
        self.engine = FleetEngine(config, clock=self.clock, connect=lambda url: self.replica)

    async def answer(self, id: str, *, prefill_s: float) -> Completion:
        asked = Request(id, "m", prompt="What is this about?")

        async def prompt() -> Request:
            await asyncio.sleep(prefill_s)
            return asked

        return await self.engine.complete_first(
            asked, timeout_s=TIMEOUT_S, deadline=Deadline(), prompt=prompt
        )


def decoding(main: Callable[[Decoding], Awaitable[None]]) -> None:
    async def run() -> None:
        here = Decoding()
        await asyncio.wait_for(main(here), 3600.0)
        await here.engine.close()

    run_virtual(run())


def test_first_token_is_awaited_from_the_end_of_the_prefill() -> None:
    async def main(here: Decoding) -> None:
        answer = await here.answer("a", prefill_s=30.0)
        assert answer.text

    decoding(main)


def test_long_prefill_is_not_taken_for_a_forgotten_request() -> None:
    async def main(here: Decoding) -> None:
        answers = await asyncio.gather(here.answer("a", prefill_s=30.0), here.answer("b", prefill_s=1.0))
        assert all(answer.text for answer in answers)

    decoding(main)


def test_silence_after_a_prefill_ends_as_early_as_without_one() -> None:
    async def main(here: Decoding) -> None:
        for id in ("a", "b"):
            await here.answer(id, prefill_s=30.0)
        here.replica.script = HANGS
        before_s = here.clock.monotonic_s()
        with pytest.raises(AttemptTimeout):
            await here.answer("c", prefill_s=30.0)
        # Four times as long as first tokens took, those of the prefills left out.
        assert here.clock.monotonic_s() - before_s == pytest.approx(30.0 + 4 * FIRST_TOKEN_S, abs=0.5)

    decoding(main)


@pytest.mark.heavy
def test_prefill_time_is_not_decode_time() -> None:
    def learned(prefill_s: float) -> float:
        found: list[float] = []

        async def main(here: Decoding) -> None:
            for number in range(20):
                await here.answer(str(number), prefill_s=prefill_s)
            found.append(here.engine.client.fleet.answer_s)

        decoding(main)
        return found[0]

    assert learned(30.0) == pytest.approx(learned(0.0))
