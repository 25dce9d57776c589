import asyncio
import pickle
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from forebay import errors
from forebay.engine.client import HttpEngine
from forebay.records import Message, Request, Sampling
from forebay.testing.engine import ScriptedEngine, ScriptedEngineFactory
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import FAULTS, Fixed

SCHEMA = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}


def ask(text: str, id: str = "r1", **fields: object) -> Request:
    return Request(id, "fake", messages=(Message("system", "s"), Message("user", text)), **fields)  # type: ignore[arg-type]


REQUESTS = [
    ask("hello"),
    ask("hello", schema=SCHEMA),
    ask("hello", sampling=Sampling(max_tokens=2)),
    ask("hello", sampling=Sampling(max_tokens=50, extra={"ignore_eos": True})),
    Request("r1", "fake", prompt="hello"),
    *(ask(f"((fault:{fault}))") for fault in sorted(FAULTS)),
]


@pytest.mark.heavy
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: f"{request_name(r)}")
async def test_in_process_engine_equals_the_scripted_replica(request_: Request) -> None:
    async def outcome(engine: ScriptedEngine | HttpEngine) -> object:
        try:
            completion = await engine.complete(request_, timeout_s=0.2 if "hang" in str(request_) else 30)
        except errors.EngineError as error:
            return type(error), error.retry_after_s
        return completion.text, completion.finish_reason, completion.usage

    async with FakeReplica(ReplicaScript(delay=Fixed(0.0))) as replica:
        http = HttpEngine(replica.url, max_answer_bytes=100_000)
        assert await outcome(ScriptedEngine(Fixed(0.0))) == await outcome(http)
        await http.close()


def request_name(request: Request) -> str:
    return f"{request.prompt or request.messages[1].content} {request.sampling.max_tokens} {request.schema}"


class Mood(BaseModel):
    mood: str


class Named(BaseModel):
    mood: str = Field(alias="Mood")
    model_config = ConfigDict(populate_by_name=True)


def by_length(text: str) -> object:
    if len(text) > 9:
        raise errors.BadRequest("too long for me")
    return Mood(mood=text)


@pytest.mark.parametrize(
    ("answers", "text", "schema", "answer"),
    [
        ({"late": "angry", "the": "calm"}, "is the parcel late?", None, "angry"),
        ({"late": {"mood": "bad"}}, "late", SCHEMA, '{"mood":"bad"}'),
        ({"late": "bad"}, "late", {"type": "string"}, '"bad"'),
        ({"late": {"wood": "oak"}}, "late", SCHEMA, '{"wood":"oak"}'),
        ({"late": {"mood": "bad"}}, "late", None, '{"mood":"bad"}'),
        ({"late": Named(mood="bad")}, "late", SCHEMA, '{"Mood":"bad"}'),
        (lambda text: text.upper(), "hello", None, "S\nHELLO"),
        (by_length, "hello", SCHEMA, '{"mood":"s\\nhello"}'),
    ],
)
async def test_a_test_chooses_the_answers(answers: Any, text: str, schema: Any, answer: str) -> None:
    engine = ScriptedEngineFactory(Fixed(0.0), answers=answers)()
    assert (await engine.complete(ask(text, schema=schema), timeout_s=30)).text == answer


async def test_usual_answer_unless_a_test_chooses_one() -> None:
    usual = await ScriptedEngine(Fixed(0.0)).complete(ask("hello", schema=SCHEMA), timeout_s=30)
    for answers in ({"late": "bad"}, lambda text: None):
        engine = ScriptedEngineFactory(Fixed(0.0), answers=answers)()
        assert (await engine.complete(ask("hello", schema=SCHEMA), timeout_s=30)).text == usual.text


async def test_answer_function_may_refuse_and_can_be_pickled() -> None:
    factory = pickle.loads(pickle.dumps(ScriptedEngineFactory(Fixed(0.0), answers=by_length)))
    with pytest.raises(errors.BadRequest, match="too long for me"):
        await factory().complete(ask("a text that is long"), timeout_s=30)


async def test_cancelling_and_closing_abort_a_call() -> None:
    engine = ScriptedEngine(Fixed(0.0))
    calls = [asyncio.ensure_future(engine.complete(ask("((fault:hang))"), timeout_s=60)) for _ in range(2)]
    await asyncio.sleep(0)
    assert engine.in_flight == 2
    calls[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    await engine.close()
    with pytest.raises(errors.Unreachable, match="closed"):
        await calls[1]
    with pytest.raises(errors.Unreachable, match="closed"):
        await engine.complete(ask("x"), timeout_s=30)
    assert (engine.in_flight, engine.aborted) == (0, 2)


def test_the_factory_is_picklable() -> None:
    factory = ScriptedEngineFactory(Fixed(0.5))
    assert pickle.loads(pickle.dumps(factory)) == factory
    assert isinstance(factory(), ScriptedEngine)


async def test_it_counts_what_happens() -> None:
    engine = ScriptedEngine(Fixed(0.01))
    await asyncio.gather(*(engine.complete(ask("x", f"r{i % 3}"), timeout_s=30) for i in range(9)))
    assert engine.calls == {"r0": 3, "r1": 3, "r2": 3}
    assert (engine.in_flight, engine.max_in_flight, engine.completed, engine.aborted) == (0, 9, 9, 0)


async def test_a_fault_for_the_first_tries_only() -> None:
    engine = ScriptedEngine(Fixed(0.0))
    with pytest.raises(errors.ServerFault):
        await engine.complete(ask("((fault:500x1))"), timeout_s=30)
    await engine.complete(ask("((fault:500x1))"), timeout_s=30)
    await engine.close()
