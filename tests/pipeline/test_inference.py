"""The engine's models are queried before a start, until it answers or the deadline passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from tests.harness.clock import ManualClock

from forebay.engine.launch.spec import CONTEXT_TOKENS
from forebay.engine.replica import ServedModel
from forebay.errors import (
    EngineError,
    Overloaded,
    PipelineFailed,
    ProtocolViolation,
    SettingError,
    Unauthorized,
    Unreachable,
)
from forebay.fleet import discovery as module
from forebay.fleet.discovery import FixedReplicas
from forebay.pipeline.inference import Served, served_by, served_model, why_unserved
from forebay.pipeline.load import parse_spec
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Faults, Fixed

URL = "http://engine"
SCRIPT = ReplicaScript(models=("m",), delay=Fixed(0.0))


class FakeEngine:
    """Fails this many times, then returns its models."""

    def __init__(
        self, *failures: EngineError, names: tuple[str, ...] = ("m",), for_ever: bool = False
    ) -> None:
        self.failures, self.names, self.for_ever = list(failures), names, for_ever
        self.asked = 0
        self.urls: tuple[str, ...] = (URL,)
        self.clock = ManualClock()
        self.output: list[tuple[str, float]] = []

    async def list_models(self, url: str, *, api_key: str | None = None) -> tuple[ServedModel, ...]:
        self.asked += 1
        if self.failures:
            raise self.failures[0] if self.for_ever else self.failures.pop(0)
        return tuple(ServedModel(name) for name in self.names)

    def served(self, monkeypatch: pytest.MonkeyPatch, **document: Any) -> str:
        monkeypatch.setattr(module, "list_models", self.list_models)
        usual = {"name": "p", "source": {"type": "generator"}, "prompt": "x", "sink": {"type": "stdout"}}
        spec = parse_spec({**usual, "deadline_s": 100.0, **document})
        return served_model(
            spec,
            FixedReplicas(self.urls),
            lambda *said: self.output.append(said),
            clock=self.clock,
            sleep=self.clock.advance,
        ).name


def test_only_model_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    assert engine.served(monkeypatch) == "m"
    assert engine.output == []


@pytest.mark.parametrize(
    ("names", "model", "words"),
    [
        (("a", "b"), None, "expected a name: the engine at http://engine serves a, b"),
        ((), None, "serves nothing"),
        (("a",), "b", "'b' is not served: the engine at http://engine serves a"),
    ],
)
def test_ambiguous_or_missing_model(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], model: str | None, words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        FakeEngine(names=names).served(monkeypatch, engine={"model": model})


def test_unavailable_engine_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(*[Unreachable("no connection")] * 8, Overloaded("busy", retry_after_s=7.0))
    before_s = engine.clock.monotonic_s()
    assert engine.served(monkeypatch) == "m"
    assert engine.asked == 10
    assert engine.clock.monotonic_s() - before_s > 7.0
    words, waited_s = engine.output[0]
    assert (words, waited_s) == ("waiting for the engine, at most 100 s: no connection", 0.0)
    assert engine.output[-1][1] > 0


def test_engine_away_until_the_deadline_is_not_a_setting_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(Unreachable("no connection"), for_ever=True)
    before_s = engine.clock.monotonic_s()
    with pytest.raises(PipelineFailed, match=r"no connection .* tries in .* nothing was started"):
        engine.served(monkeypatch)
    assert 90 < engine.clock.monotonic_s() - before_s <= 100


def test_an_engine_that_answers_in_the_wrong_form_is_tried_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine(ProtocolViolation("no list of models"), for_ever=True)
    with pytest.raises(PipelineFailed, match=r"no list of models \(5 tries in"):
        engine.served(monkeypatch)
    assert {words for words, _ in engine.output} == {
        "waiting for the engine, at most 5 tries: no list of models"
    }


def test_permanent_failure_is_a_setting_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(Unauthorized("check the API key"))
    with pytest.raises(SettingError, match=r"engine\.url: .* check the API key"):
        engine.served(monkeypatch)
    assert engine.asked == 1


def test_one_answering_replica_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(Unreachable("no connection"))
    engine.urls = ("http://away", URL)
    assert engine.served(monkeypatch) == "m"
    assert engine.output == []


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (FakeEngine(), ""),
        (FakeEngine(names=("other",)), "the engine at http://engine serves other, not m"),
        (FakeEngine(names=()), "the engine at http://engine serves nothing, not m"),
        (FakeEngine(Unreachable("no connection; is it there?")), "no connection; is it there?"),
    ],
)
def test_reason_why_no_replica_serves_the_model(
    monkeypatch: pytest.MonkeyPatch, engine: FakeEngine, why: str
) -> None:
    monkeypatch.setattr(module, "list_models", engine.list_models)
    monkeypatch.setattr(module, "probe_error", AsyncMock(return_value=None))
    spec = parse_spec(
        {"name": "p", "source": {"type": "generator"}, "prompt": "x", "sink": {"type": "stdout"}}
    )
    assert why_unserved(spec, Served(FixedReplicas((URL,)), "m")) == (
        f"the engine gets no requests: {why}" if why else ""
    )


def test_replica_that_lists_its_model_but_refuses_requests_is_reported() -> None:
    spec = parse_spec(
        {"name": "p", "source": {"type": "generator"}, "prompt": "x", "sink": {"type": "stdout"}}
    )
    with ReplicaThread(replace(SCRIPT, faults=Faults((("401", 1.0),)))) as replica:
        why = why_unserved(spec, Served(FixedReplicas((replica.url,)), "m"))
    assert why.startswith(f"the engine gets no requests: {replica.url} answered 401")


def test_replicas_with_different_models_need_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    engine.urls = ("http://a", "http://b")
    by_url = {"http://a": "x", "http://b": "y"}

    async def list_models(url: str, *, api_key: str | None = None) -> tuple[ServedModel, ...]:
        return (ServedModel(by_url[url]),)

    engine.list_models = list_models  # type: ignore[method-assign]
    assert engine.served(monkeypatch, engine={"model": "y"}) == "y"
    words = "expected a name: the engine at http://a serves x; the engine at http://b serves y"
    with pytest.raises(SettingError, match=words):
        engine.served(monkeypatch)


def served_with(prefill: ReplicaScript, **engine: Any) -> list[str]:
    """Progress messages before the job starts; `engine`: additional keys of the pipeline file."""
    text: list[str] = []
    with ReplicaThread(SCRIPT) as decodes, ReplicaThread(prefill) as prefills:
        document = {
            "name": "p",
            "source": {"type": "generator"},
            "prompt": "x",
            "sink": {"type": "stdout"},
            "engine": {"url": decodes.url, "prefill": prefills.url, **engine},
        }
        spec = parse_spec(document)
        served = served_by(spec, (), lambda words, waited_s: text.append(words))
        assert served.model == "m"
        # Replicas on the command line replace those of the file.
        assert served_by(spec, (decodes.url,)).model == "m"
    return text


def test_prefill_servers_are_checked_before_the_start() -> None:
    assert served_with(SCRIPT) == []
    assert served_with(SCRIPT, api="completions") == []
    (text,) = served_with(replace(SCRIPT, faults=Faults((("503", 1.0),))))
    assert text.startswith("engine.prefill: prompts are prefilled where they are decoded until")
    with pytest.raises(SettingError, match=r"^engine\.prefill: .* gives no KV cache"):
        served_with(replace(SCRIPT, gives_kv_cache=False))
    with pytest.raises(SettingError, match=r"^engine\.prefill: .* serves other, not 'm'"):
        served_with(replace(SCRIPT, models=("other",)))


def spec_of(**document: Any) -> Any:
    usual = {"name": "p", "source": {"type": "generator"}, "sink": {"type": "stdout"}, "key": "{{ text }}"}
    return parse_spec({**usual, **document})


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            {"prompt": "x", "sampling": {"max_tokens": 2048}},
            "sampling.max_tokens: the answer with its prompt takes up to 2,049 tokens of context, and the "
            "model 'm' has 2,048: start the engine with a longer context (vLLM: `--max-model-len 2049`, "
            "`forebay engine up --max-model-len 2049`), or set sampling.max_tokens to at most 2047",
        ),
        (
            {"application": {"type": "summary"}, "event_time": {}},
            "application.chunk_tokens: the largest call of a summary takes up to 6,550 tokens of context",
        ),
        (
            {"application": {"type": "sessions"}, "sampling": {"max_tokens": 1000}},
            "application.budget_tokens: a prompt of the budget with its answer takes up to 2,536 tokens of "
            "context, and the model 'm' has 2,048: start the engine with a longer context (vLLM: "
            "`--max-model-len 2536`, `forebay engine up --max-model-len 2536`), or set "
            "application.budget_tokens to at most 1048",
        ),
        (
            {"application": {"type": "topics"}, "sampling": {"max_tokens": 4000}},
            "sampling.max_tokens: the answer with its prompt takes up to 4,001 tokens of context",
        ),
    ],
)
def test_too_short_context_stops_the_start(document: dict[str, Any], words: str) -> None:
    short = ReplicaThread(replace(SCRIPT, max_model_len=2048))
    with short as replica, pytest.raises(SettingError) as failed:
        served_by(spec_of(**document), [replica.url])
    assert str(failed.value).startswith(words)


def test_minimal_summary_error_names_only_the_context() -> None:
    spec = spec_of(application={"type": "summary"}, event_time={})
    short = ReplicaThread(replace(SCRIPT, max_model_len=2048))
    with short as replica, pytest.raises(SettingError, match=r"--max-model-len 6550`\)$"):
        served_by(spec, [replica.url])


def test_fitting_context_starts() -> None:
    documents: list[dict[str, Any]] = [
        {"prompt": "x"},
        {"prompt": "x", "answer_tokens": "{{ text }}", "sampling": {"max_tokens": 9000}},
        {"application": {"type": "sessions"}},
        {"application": {"type": "trends"}},
        {"application": {"type": "topics"}},
        {"application": {"type": "summary"}, "event_time": {}},
    ]
    with ReplicaThread(replace(SCRIPT, max_model_len=CONTEXT_TOKENS)) as replica:
        for document in documents:
            assert served_by(spec_of(**document), [replica.url]).model == "m"


def test_shortest_context_of_any_replica_counts() -> None:
    long, short = (ReplicaThread(replace(SCRIPT, max_model_len=tokens)) for tokens in (1000, 100))
    words = "the model 'm' has 100"
    with long as first, short as second, pytest.raises(SettingError, match=words):
        served_by(spec_of(prompt="x"), [first.url, second.url])
