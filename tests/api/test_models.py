from __future__ import annotations

import pickle
import socket
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

import forebay as fb
from forebay.api import inference
from forebay.api.models import AnswerModel, ReadResult
from forebay.apps.summaries.settings import SummarySpec
from forebay.codec import encode
from forebay.errors import InvalidAnswer, PipelineFailed, SettingError
from forebay.flink.metrics import InferenceCounters
from forebay.flink.request_handler import RequestHandler
from forebay.records import KeyedEvent, Usage
from forebay.testing import Fixed, ReplicaScript, ReplicaThread, ScriptedEngineFactory
from forebay.testing.engine import ScriptedEngine


class Day(BaseModel):
    model_config = ConfigDict(strict=True)
    on: date
    note: str = Field(default="", alias="n")


class Report(BaseModel):
    days: list[Day]

    @field_validator("days")
    @classmethod
    def _some(cls, days: list[Day]) -> list[Day]:
        if not days:
            raise ValueError("a report needs a day")
        assert 1 / len(days[0].note) > 0
        return days


ANSWER = {"days": [{"on": "2026-03-02", "n": "wet"}]}


def test_answer_becomes_a_model_instance() -> None:
    report = AnswerModel(Report)(ANSWER)
    assert report == Report(days=[Day(on=date(2026, 3, 2), n="wet")])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"days": []}, "Report rejects the answer at days: Value error, a report needs a day"),
        ({"days": [{"on": "2026-02-30", "n": "wet"}]}, r"Report rejects the answer at days\.0\.on: "),
        ({"days": [{"on": "2026-03-02"}]}, "Report rejects the answer: ZeroDivisionError"),
    ],
)
def test_answer_rejected_by_the_model_is_invalid(answer: Any, words: str) -> None:
    with pytest.raises(InvalidAnswer, match=words):
        AnswerModel(Report)(answer)


class Never(BaseModel):
    word: str

    @field_validator("word")
    @classmethod
    def _none(cls, word: str) -> str:
        raise ValueError("not that one")


async def test_rejected_answer_is_retried_and_then_a_dead_letter() -> None:
    ask = fb.Inference(
        ScriptedEngineFactory(Fixed(0)),
        prompt="{{ text }}",
        schema=Never,
        retry=fb.RetryPolicy(max_invalid_answers=3, base_s=0.001, max_backoff_s=0.001),
    )
    handler = RequestHandler(ask.spec("m"), InferenceCounters())
    letter = await handler.answer(KeyedEvent("1", "", fb.Event(b"x", {"text": "x"}), 0))
    await handler.close()
    assert isinstance(letter, fb.DeadLetter)
    assert (letter.cause, letter.attempts) == ("invalid_answer", 3)
    assert letter.detail == "Never rejects the answer at word: Value error, not that one"


def test_result_with_an_unimportable_model_can_be_pickled() -> None:
    class Inner(BaseModel):
        team: str

    class Local(BaseModel):
        inner: Inner

    plain = fb.Result("1", "k", {}, {"inner": {"team": "a"}}, Usage(), 1, 0, 0.0, 0.0)
    result = ReadResult(AnswerModel(Local))(encode(plain))
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(result.answer)
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert isinstance(again.answer, Local)
    assert isinstance(again.answer.inner, Inner)
    changed = replace(ReadResult(AnswerModel(Report))(encode(replace(plain, answer=ANSWER))), key="other")
    assert pickle.loads(pickle.dumps(changed)) == changed


def script(*models: str) -> ReplicaScript:
    return ReplicaScript(models=models, delay=Fixed(0))


def test_only_served_model_is_used() -> None:
    with ReplicaThread(script("small")) as replica:
        assert fb.Inference(replica.url).served_model() == "small"
        assert fb.Inference(replica.url, model="small").served_model() == "small"


async def test_calls_work_inside_a_notebooks_event_loop() -> None:
    with ReplicaThread(script("small")) as replica:
        assert fb.Inference([replica.url]).served_model() == "small"


def test_several_models_need_a_name() -> None:
    with (
        ReplicaThread(script("a", "b")) as replica,
        pytest.raises(SettingError, match=r"model: expected a name: the engine at .* serves a, b"),
    ):
        fb.Inference(replica.url).served_model()


def test_unserved_model_is_reported_with_the_served_ones() -> None:
    with (
        ReplicaThread(script("a", "b")) as replica,
        pytest.raises(SettingError, match=r"^model: 'gpt' is not served: the engine at .* serves a, b$"),
    ):
        fb.Inference(["http://127.0.0.1:9", replica.url], model="gpt").served_model()


def test_silent_engine_may_start_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fb.Inference("http://127.0.0.1:9", model="m").served_model() == "m"
    monkeypatch.setattr(inference, "ASKED_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert fb.Inference(url, model="m").served_model() == "m"
    no_key = {"env": "NO_SUCH_KEY_HERE"}
    with ReplicaThread(script("a")) as replica:
        monkeypatch.setattr(inference, "ASKED_S", 0.0)
        assert fb.Inference(replica.url, model="m").served_model() == "m", "no time to ask"
        monkeypatch.undo()
        assert fb.Inference(replica.url, model="m", api_key=no_key).served_model() == "m"


def test_waiting_for_the_server_is_reported_once_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    note = inference.NoteOnce(3.0)
    for waited_s in (0.0, 1.0, 3.5, 8.0):
        note(f"waited {waited_s} s", waited_s)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "waited 3.5 s")
    ]


@pytest.mark.heavy
def test_awaited_server_is_named(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "SILENT_S", 0.0)
    with pytest.raises(PipelineFailed):
        fb.Inference("http://127.0.0.1:9", deadline_s=0.5).served_model()
    (text,) = [record.getMessage() for record in caplog.records if record.name == "forebay"]
    assert text.startswith("waiting for the engine, at most 0.5 s: ")
    assert "127.0.0.1:9" in text


def test_custom_engine_needs_no_model_name() -> None:
    assert fb.Inference(ScriptedEngineFactory()).served_model() == "scripted"
    assert fb.Inference(ScriptedEngineFactory(), model="m").served_model() == "m"
    assert fb.Inference(ScriptedEngine).served_model() == "none"


def test_waiting_for_an_absent_server_is_bounded() -> None:
    ask = fb.Inference("http://127.0.0.1:9", deadline_s=0.05)
    with pytest.raises(PipelineFailed, match="nothing was started"):
        ask.served_model()


def test_prefill_servers_are_queried_when_the_operator_is_created(caplog: pytest.LogCaptureFixture) -> None:
    with ReplicaThread(script("m")) as decodes, ReplicaThread(script("m")) as prefills:
        fleet = fb.Fleet(decodes.url, prefill=[prefills.url])
        assert fb.Inference(fleet).served_model() == "m"
        assert fb.Inference(fleet, model="m", api="completions").served_model() == "m"
        assert not caplog.records
        fleet = fb.Fleet(decodes.url, prefill=["http://127.0.0.1:9"])
        assert fb.Inference(fleet).served_model() == "m"
    (text,) = [record.getMessage() for record in caplog.records if record.name == "forebay"]
    assert text.startswith("prefill: prompts are prefilled where they are decoded until one of its servers")
    with ReplicaThread(script("m")) as decodes, ReplicaThread(script("other")) as prefills:
        fleet = fb.Fleet(decodes.url, prefill=[prefills.url])
        with pytest.raises(SettingError, match=r"^prefill: http://\S+ serves other, not 'm'"):
            fb.Inference(fleet).served_model()


def test_too_short_context_fails_the_start() -> None:
    with ReplicaThread(ReplicaScript(models=("small",), max_model_len=2048)) as replica:
        for model in (None, "small"):
            ask = fb.Inference(replica.url, model=model, sampling=fb.Sampling(max_tokens=2048))
            with pytest.raises(SettingError, match=r"^sampling\.max_tokens: the answer with its prompt"):
                ask.served_model()
            need = SummarySpec().context_need(128)
            with pytest.raises(SettingError, match="takes up to 6,550 tokens of context, and the model"):
                fb.Inference(replica.url, model=model).served_model(need)
