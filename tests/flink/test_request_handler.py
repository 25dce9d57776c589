"""From an event to its answer, with an in-process engine."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.clock import ManualClock

from forebay.codec import decode, encode
from forebay.engine import Deadline
from forebay.engine.journal import Journal, JournalConfig
from forebay.engine.prices import TokenPrices, most_prompt_tokens
from forebay.engine.prompt import FieldTemplate, PromptTemplate, request_hash
from forebay.engine.retry import RetryPolicy
from forebay.errors import AttemptTimeout, Overloaded, SettingError
from forebay.fleet.autoscale.base import ServiceClass
from forebay.fleet.config import FleetConfig
from forebay.fleet.disaggregated import engine_factory
from forebay.fleet.discovery import FixedReplicas
from forebay.flink.infer import infer
from forebay.flink.metrics import InferenceCounters
from forebay.flink.request_handler import (
    EventClasses,
    InferenceSpec,
    ProgramRequestHandler,
    RequestHandler,
    due_s,
)
from forebay.records import (
    Completion,
    DeadLetter,
    Event,
    KeyedEvent,
    Message,
    Request,
    Result,
    Sampling,
    Timeline,
    Timing,
    Usage,
)
from forebay.stateful.program import Ask
from forebay.stateful.turns import ProgramRequest
from forebay.testing.answers import REASONING, echo
from forebay.testing.engine import ScriptedEngine
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Fixed

FAST = RetryPolicy(base_s=0.001, max_backoff_s=0.001)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def item(text: str | None = "hello", id: str = "r1") -> KeyedEvent:
    fields = {} if text is None else {"text": text}
    return KeyedEvent(id, "ann", Event(b"raw \xff", fields, time_ms=5, position="p@1"), read_ms=3)


class OneEngine:
    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __call__(self) -> Any:
        return self.engine


class Spy(ScriptedEngine):
    def __init__(self, seen: list[Request]) -> None:
        super().__init__(Fixed(0.0))
        self._seen = seen

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        self._seen.append(request)
        return await super().complete(request, timeout_s=timeout_s, deadline=deadline)


def call(engine: Any = None, **settings: Any) -> InferenceSpec:
    settings = {"prompt": PromptTemplate("say {{ text }}"), "retry": FAST, **settings}
    return InferenceSpec(engine=OneEngine(engine or ScriptedEngine(Fixed(0.0))), model="m", **settings)


async def answer(
    item: KeyedEvent, call: InferenceSpec, counts: InferenceCounters | None = None
) -> Result | DeadLetter:
    answering = RequestHandler(call, counts or InferenceCounters())
    try:
        found = await answering.answer(item)
        assert decode(encode(found)) == found
        return found
    finally:
        await answering.close()


async def test_result_has_event_and_answer() -> None:
    counts = InferenceCounters()
    found = await answer(item(), call(), counts)
    assert isinstance(found, Result)
    assert found.answer == echo("say hello")
    assert (found.id, found.key, found.fields) == ("r1", "ann", {"text": "hello"})
    assert (found.time_ms, found.position, found.read_ms) == (5, "p@1", 3)
    assert (found.attempts, found.finish_reason, found.journaled, found.restored) == (1, "stop", False, False)
    assert found.usage.completion_tokens > 0
    assert (counts.calls, counts.retries) == (1, 0)
    assert counts.completion_tokens == found.usage.completion_tokens


class TimedEngine:
    """Calls with known times: sent after 2 s, first token 3 s later, done 4 s later."""

    def __init__(self, clock: ManualClock, *, streams: bool = True) -> None:
        self._clock = clock
        self._streams = streams

    async def complete(self, request: Request, **_: object) -> Completion:
        self._clock.advance(2.0)
        sent_s = self._clock.monotonic_s()
        self._clock.advance(7.0)
        timing = Timing(sent_s, sent_s + 7.0, first_token_s=sent_s + 3.0 if self._streams else None)
        self._clock.advance(0.5)
        return Completion("yes", "stop", Usage(), timing)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("streams", [True, False])
async def test_timeline_has_wall_clock_times_of_the_call(streams: bool) -> None:
    clock = ManualClock(wall_ms=1_000_000)
    spec = call(TimedEngine(clock, streams=streams))
    begun = replace(item(), timeline=Timeline(read_us=5, accepted_us=6))
    found = await RequestHandler(spec, InferenceCounters(), clock).answer(begun)
    assert isinstance(found, Result)
    first_us = 1_005_000_000 if streams else None
    assert found.timeline == Timeline(5, 6, 1_002_000_000, first_us, 1_009_000_000)


async def test_request_is_built_from_event_and_call() -> None:
    seen: list[Request] = []
    template = PromptTemplate(messages=(Message("system", "for {{ key }}"), Message("user", "{{ text }}")))
    await answer(item(), call(Spy(seen), prompt=template))
    await answer(item(), call(Spy(seen), prompt=PromptTemplate("{{ text }}", api="completions")))
    chat, plain = seen
    assert chat.messages == (Message("system", "for ann"), Message("user", "hello"))
    assert (chat.id, chat.model, chat.prompt) == ("r1", "m", None)
    assert (plain.messages, plain.prompt) == ((), "hello")


async def test_answer_length_is_an_integer_of_the_event() -> None:
    seen: list[Request] = []
    tokens = FieldTemplate("{{ text | length }}", what="answer_tokens")
    await answer(item(), call(Spy(seen), answer_tokens=tokens))
    await answer(item(), call(Spy(seen), answer_tokens=tokens, sampling=Sampling(2, stop=("x",))))
    assert [request.sampling.max_tokens for request in seen] == [5, 5]
    assert seen[1].sampling.stop == ("x",)
    for text in ("{{ text }}", "0", "-3", "1.5", "99999999"):
        found = await answer(item(), call(answer_tokens=FieldTemplate(text, what="answer_tokens")))
        assert isinstance(found, DeadLetter)
        assert (found.cause, found.attempts) == ("template_failed", 0)
        assert "answer_tokens: expected a whole number above 0" in found.detail


async def test_priority_is_an_integer_of_the_event_sent_if_enabled() -> None:
    seen: list[Request] = []
    priority = FieldTemplate("{{ text | length }}", what="priority")
    await answer(item(), call(Spy(seen), priority=priority))
    await answer(item(), call(Spy(seen), priority=priority, send_priority=True))
    kept, sent = seen
    assert (kept.priority, kept.session, dict(kept.sampling.extra)) == (5, "ann", {})
    assert (sent.priority, dict(sent.sampling.extra)) == (5, {"priority": 5})
    found = await answer(item(), call(priority=FieldTemplate("{{ text }}", what="priority")))
    assert isinstance(found, DeadLetter)
    assert (found.cause, found.attempts) == ("template_failed", 0)
    assert "priority: expected a whole number, found 'hello'" in found.detail


async def test_request_deadline_follows_its_class() -> None:
    seen: list[Request] = []
    hello = ServiceClass("hello", 5.0)
    classes = EventClasses(FieldTemplate("{{ text }}", what="classes"), ServiceClass(slo_s=60.0), (hello,))
    made = call(Spy(seen), classes=classes)
    handler = RequestHandler(made, InferenceCounters())
    for fields in ({"text": "hello"}, {"text": "else"}, {}):
        # The template of the prompt fails without a text: nothing is asked.
        await handler.answer(KeyedEvent("r", "ann", Event(b"", fields), 0))
    of_programs = ProgramRequestHandler(made, InferenceCounters())
    ask = Ask((Message("user", "x"),))
    await of_programs.answer(ProgramRequest("r", "ann", Event(b"", {"text": "hello"}), 0, ask=ask))
    await answer(item(), call(Spy(seen)))
    assert [request.service for request in seen] == ["hello", "default", "hello", ""]
    assert [request.due_s is not None for request in seen] == [True, True, True, False]


async def test_unsent_request_counts_no_call() -> None:
    class Full(ScriptedEngine):
        async def complete(
            self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
        ) -> Any:
            raise Overloaded("no replica had room", sent=False)

    found = await answer(item(), call(Full(), deadline_s=0.1))
    assert isinstance(found, DeadLetter)
    assert (found.cause, found.attempts) == ("overloaded", 0)


async def test_valid_structured_answer_is_parsed() -> None:
    found = await answer(item(), call(schema=SCHEMA))
    assert isinstance(found, Result)
    assert isinstance(found.answer["n"], int)


async def test_failed_template_is_a_dead_letter_without_a_call() -> None:
    counts = InferenceCounters()
    found = await answer(item(text=None), call(), counts)
    assert isinstance(found, DeadLetter)
    assert (found.cause, found.attempts, counts.calls) == ("template_failed", 0, 0)
    assert (found.raw, found.id, found.key) == (b"raw \xff", "r1", "ann")
    assert (found.time_ms, found.position) == (5, "p@1")


@pytest.mark.parametrize(
    ("fault", "cause", "attempts"),
    [
        ("schema", "invalid_answer", 3),
        ("500", "server_fault", 5),
        ("garbage", "protocol_violation", 5),
        ("400", "bad_request", 1),
        ("404", "model_not_found", 1),
        ("too_long", "prompt_too_long", 1),
    ],
)
async def test_given_up_request_is_a_dead_letter_with_cause(fault: str, cause: str, attempts: int) -> None:
    counts = InferenceCounters()
    found = await answer(item(f"((fault:{fault}))"), call(schema=SCHEMA), counts)
    assert isinstance(found, DeadLetter)
    assert (found.cause, found.attempts, found.raw) == (cause, attempts, b"raw \xff")
    assert (counts.calls, counts.retries) == (1, attempts - 1)


async def test_transient_fault_only_costs_retries() -> None:
    counts = InferenceCounters()
    found = await answer(item("((fault:503x2))"), call(), counts)
    assert isinstance(found, Result)
    assert (found.attempts, counts.retries, counts.calls) == (3, 2, 1)


async def test_silent_engine_is_given_up_at_the_deadline() -> None:
    clock = ManualClock()

    class Hung(ScriptedEngine):
        async def complete(
            self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
        ) -> Any:
            assert deadline is not None
            deadline.begin(clock.monotonic_s())
            clock.advance(min(timeout_s, deadline.left_s(clock.monotonic_s())))
            raise AttemptTimeout("no answer")

    answering = RequestHandler(call(Hung(), timeout_s=20.0, deadline_s=50.0), InferenceCounters(), clock)
    found = await answering.answer(item())
    await answering.close()
    assert isinstance(found, DeadLetter)
    # Two whole tries, and one in what the waits between them and the deadline leave.
    assert (found.cause, found.attempts) == ("timeout", 3)
    assert clock.monotonic_s() <= 1050.0


@pytest.mark.heavy
async def test_journal_write_failure_is_counted_but_loses_no_answer(tmp_path: Path) -> None:
    journal = JournalConfig(tmp_path / "journal.db")
    counts = InferenceCounters()
    answering = RequestHandler(call(journal=journal), counts)
    other = sqlite3.connect(journal.path, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        assert isinstance(await answering.answer(item()), Result)
        assert counts.journal_failures == 1
    finally:
        other.close()
        await answering.close()


async def test_journal_returns_earlier_answers(tmp_path: Path) -> None:
    journal = JournalConfig(tmp_path / "journal.db")
    counts, engine = InferenceCounters(), ScriptedEngine(Fixed(0.0))
    first = await answer(item(id="a"), call(engine, journal=journal), counts)
    again = await answer(
        item(id="b"), call(ScriptedEngine(Fixed(0.0)), journal=journal), counts
    )  # another run
    assert isinstance(first, Result)
    assert isinstance(again, Result)
    assert (again.answer, again.usage, again.id) == (first.answer, first.usage, "b")
    assert (first.journaled, again.journaled, again.attempts) == (False, True, 0)
    assert (counts.calls, counts.journal_hits) == (1, 1)
    other = await answer(item("another", id="c"), call(journal=journal), counts)
    assert isinstance(other, Result)
    assert (other.journaled, counts.calls) == (False, 2)


PRICES = TokenPrices(prompt=5, cached=1, completion=7)


async def test_all_answers_of_a_record_are_paid(tmp_path: Path) -> None:
    counts = InferenceCounters()

    async def paid(text: str, id: str) -> Result | DeadLetter:
        journal = JournalConfig(tmp_path / "journal.db")
        return await answer(item(text, id), call(schema=SCHEMA, prices=PRICES, journal=journal), counts)

    plain, again = await paid("hello", "r1"), await paid("hello", "r1")
    assert isinstance(plain, Result)
    assert (plain.cost_pico, again.cost_pico) == (PRICES.cost_pico(plain.usage), 0)
    retried = await paid("((fault:schemax2))", "r2")
    assert isinstance(retried, Result)
    assert retried.attempts == 3
    assert (retried.cost_pico or 0) > 3 * PRICES.cost_pico(Usage(retried.usage.prompt_tokens))
    given_up, refused = await paid("((fault:schema))", "r3"), await paid("((fault:400))", "r4")
    assert isinstance(given_up, DeadLetter)
    assert (given_up.cost_pico or 0) > 0
    assert (refused.cost_pico, (await answer(item(), call())).cost_pico) == (None, None)
    assert counts.cost_pico == sum(each.cost_pico or 0 for each in (plain, retried, given_up))


async def test_call_without_usage_costs_its_maximum() -> None:
    clock = ManualClock(wall_ms=1_000_000)
    spec = call(TimedEngine(clock), prices=PRICES, sampling=Sampling(max_tokens=3))
    found = await RequestHandler(spec, InferenceCounters(), clock).answer(item("é"))
    most = most_prompt_tokens(spec.request(item("é")))
    assert found.cost_pico == spec.most_pico(item("é")) == most * 5 + 3 * 7
    request = spec.request(item())
    assert spec.cost_pico(request, Usage(prompt_tokens=9)) == 9 * 5 + 3 * 7
    assert spec.cost_pico(request, Usage(completion_tokens=2)) == most_prompt_tokens(request) * 5 + 2 * 7
    asked = Ask((Message("user", "four"),), sampling=Sampling(max_tokens=1))
    program_request = ProgramRequest("r", "k", item().event, 0, ask=asked)
    asked_most = most_prompt_tokens(spec.request(program_request))
    assert spec.most_pico(program_request) == asked_most * 5 + 7
    assert spec.most_pico(item(None)) == 0
    with pytest.raises(SettingError, match="budget_pico: expected prices with it, found none"):
        call(budget_pico=1)
    with pytest.raises(SettingError, match="a budget needs a key"):
        infer(None, call(prices=PRICES, budget_pico=1))  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["400", "empty", "reasoning", "refusal", "tool_calls", "content_filter"])
async def test_non_answers_are_not_journaled(tmp_path: Path, fault: str) -> None:
    journal = JournalConfig(tmp_path / "journal.db")
    counts = InferenceCounters()
    for _ in range(2):
        found = await answer(item(f"((fault:{fault}))"), call(journal=journal), counts)
        assert isinstance(found, DeadLetter)
        assert found.cause != "invalid_answer"
    assert (counts.calls, counts.journal_hits) == (2, 0)


async def test_empty_journal_answer_is_requested_again(tmp_path: Path) -> None:
    journal = JournalConfig(tmp_path / "journal.db")
    spec = call(journal=journal)
    empty = Completion(" ", "stop", Usage(), Timing(0.0, 0.0))
    kept = Journal(journal)
    await kept.put(request_hash(spec.request(item())), empty)
    await kept.close()
    found = await answer(item(), spec)
    assert isinstance(found, Result)
    assert (found.answer, found.journaled) == (echo("say hello"), False)


async def test_reasoning_is_in_result_and_journal(tmp_path: Path) -> None:
    spec = call(journal=JournalConfig(tmp_path / "journal.db"))
    found = [await answer(item("((fault:reasons))"), spec) for _ in range(2)]
    assert [isinstance(each, Result) and (each.reasoning, each.journaled) for each in found] == [
        (REASONING, False),
        (REASONING, True),
    ]


async def test_cut_text_is_a_marked_result(tmp_path: Path) -> None:
    spec = call(journal=JournalConfig(tmp_path / "journal.db"))
    for _ in range(2):
        found = await answer(item("((fault:length))"), spec)
        assert isinstance(found, Result)
        assert (found.finish_reason, found.reasoning) == ("length", None)


async def test_close_closes_the_journal_if_the_engine_fails(tmp_path: Path) -> None:
    class Stuck(ScriptedEngine):
        async def close(self) -> None:
            raise OSError("stuck")

    answering = RequestHandler(
        call(Stuck(), journal=JournalConfig(tmp_path / "journal.db")), InferenceCounters()
    )
    with pytest.raises(OSError, match="stuck"):
        await answering.close()
    assert answering._journal is not None
    assert await answering._journal.get("x") is None


async def test_two_pools_report_handovers_and_decoders() -> None:
    script = ReplicaScript(models=("m",), delay=Fixed(0.0))
    async with FakeReplica(script) as prefills, FakeReplica(script) as decodes:
        fleet = FleetConfig(FixedReplicas((decodes.url,)), model="m")
        engine = engine_factory(fleet, FixedReplicas((prefills.url,)))()
        counts = InferenceCounters()
        found = await answer(item(), call(engine), counts)
        assert isinstance(found, Result)
        assert (counts.kv_transfers, counts.kv_fallbacks_no_server) == (1, 0)


@pytest.mark.heavy
async def test_fleet_reports_available_replicas() -> None:
    script = ReplicaScript(models=("m",), delay=Fixed(0.0))
    async with FakeReplica(script) as prefills, FakeReplica(script) as one, FakeReplica(script) as other:
        fleet = FleetConfig(FixedReplicas((one.url, other.url)), model="m")
        for factory in (engine_factory(fleet), engine_factory(fleet, FixedReplicas((prefills.url,)))):
            counts, published = InferenceCounters(), asyncio.Event()
            counts.replicas.notify = published.set
            handler = RequestHandler(call(factory()), counts)
            await handler.answer(item())
            while counts.replicas.usable != 2:
                published.clear()
                await asyncio.wait_for(published.wait(), 60.0)
            await handler.close()


@pytest.mark.parametrize(
    ("age_ms", "due"), [(0, 1005), (1, 1004), (999, 1004), (1001, 1003), (60_000, 945), (-3_600_000, 1005)]
)
def test_deadline_is_read_time_plus_slo_in_whole_seconds(age_ms: int, due: int) -> None:
    """Priority decides among requests due in the same second: exact times would all differ."""
    clock = ManualClock(monotonic_s=1000.0, wall_ms=1_700_000_000_000)
    event = KeyedEvent("r", "", Event(b"", {}), read_ms=clock.wall_ms() - age_ms)
    assert due_s(event, ServiceClass("alarm", 5.0), clock) == due
