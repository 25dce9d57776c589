"""The traces of events: their spans, which are kept, and an exporter that is away; without Flink."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.harness.clock import ManualClock
from tests.harness.engines import CannedEngine, answer_of, card
from tests.harness.programs import Remember

from forebay import otel
from forebay.clock import SystemClock
from forebay.codec import encode
from forebay.engine.prompt import PromptTemplate
from forebay.engine.protocol import CHAT_PATH
from forebay.engine.retry import RetryPolicy
from forebay.fleet.config import FleetConfig
from forebay.fleet.disaggregated import engine_factory
from forebay.fleet.discovery import FixedReplicas
from forebay.flink.event_spans import EventSpans
from forebay.flink.event_traces import EventTraces, open_event_traces
from forebay.flink.metrics import InferenceCounters
from forebay.flink.request_handler import InferenceSpec, ProgramRequestHandler, RequestHandler
from forebay.records import DeadLetter, Event, KeyedEvent, Request, Result, Usage
from forebay.settings import SecretRef
from forebay.stateful.key_states import StateLimits
from forebay.stateful.machine import DictStore, Effect, Emit, OpenMachines, StartCall, Times, stateless
from forebay.stateful.shard_executor import ProgramMachines
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Fixed

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
QUICK = ReplicaScript(models=("m",), delay=Fixed(0.0), chunks=2)
MARGINS = ("event", "read", "wait", "answer")
SECRET = "sk-never-in-a-span"


def item(number: int = 1, text: str = "hello", headers: Mapping[str, bytes] | None = None) -> KeyedEvent:
    event = Event(text.encode(), {"n": number, "text": text}, 5, f"in@{number}", headers=headers or {})
    return KeyedEvent(f"r{number}", "ann", event, SystemClock().wall_ms())


class Traced:
    """The machine of one shard, its traces, and calls of real replicas."""

    def __init__(
        self,
        *urls: str,
        machines: OpenMachines = stateless,
        prefill: str = "",
        key: SecretRef | None = None,
        **call: Any,
    ) -> None:
        fleet = FleetConfig(FixedReplicas(urls), model="m", api_key=key, check_timeout_s=60.0)
        self.call = InferenceSpec(
            engine_factory(fleet, FixedReplicas((prefill,)) if prefill else None),
            "m",
            PromptTemplate("judge {{ text }}"),
            retry=RetryPolicy(base_s=0.001, max_backoff_s=0.001),
            **call,
        )
        self.machines = machines
        self.stores: dict[str, DictStore] = {}
        self.counts = InferenceCounters()
        self.begin()

    def begin(self) -> None:
        """Also again, from what is in the stores."""
        self.exporter, clock = InMemorySpanExporter(), SystemClock()
        self.machine = self.machines(lambda name: self.stores.setdefault(name, DictStore()))()
        spans = EventSpans("p", 2048, lambda _: None, clock, exporter=self.exporter)
        self.traces = EventTraces(spans, self.counts, clock)
        self.todo: list[StartCall] = []
        self._take(self.machine.restore())

    def event(self, event: KeyedEvent) -> None:
        self._take(self.machine.event(event, encode(event), lambda: Times(0)))

    async def answer(self) -> list[Result | DeadLetter]:
        kind = RequestHandler if self.machines is stateless else ProgramRequestHandler
        inner = kind(self.call, self.counts)
        handler = self.traces.traced(inner)
        given: list[Result | DeadLetter] = []
        while self.todo:
            call = self.todo.pop(0).item
            answer = await handler.answer(call)
            given += self._take(self.machine.answered(call.id, answer, lambda: Times(0)))
        await handler.close()
        return given

    def _take(self, effects: Sequence[Effect]) -> list[Result | DeadLetter]:
        self.traces.take(0, effects)
        self.todo += [effect for effect in effects if isinstance(effect, StartCall)]
        return [effect.record for effect in effects if isinstance(effect, Emit)]

    def spans(self) -> list[ReadableSpan]:
        """All that were exported, by their start."""
        self.traces.close()
        spans = self.exporter.get_finished_spans()
        return sorted(spans, key=lambda span: (span.start_time or 0, span.name != "event"))


@pytest.fixture
async def replica() -> Any:
    made = FakeReplica(QUICK)
    await made.start()
    yield made
    await made.stop()


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def named(spans: list[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


async def test_event_is_one_trace_from_read_to_answer() -> None:
    engine = CannedEngine([card("m")], {CHAT_PATH: answer_of("yes")})
    await engine.start()
    traced = Traced(engine.url)
    traced.event(item(text=SECRET))
    await traced.answer()
    await engine.stop()
    spans = traced.spans()
    assert [span.name for span in spans] == ["event", "read", "wait", "route", "chat m", "answer"]
    event, read, wait, route, call, answer = spans
    assert {ids(span)[0] for span in spans} == {ids(event)[0]}
    assert {span.parent.span_id for span in spans[1:] if span.parent} == {int(ids(event)[1], 16)}
    # Each begins where the one before ends, and all are within the event's.
    assert (read.start_time, read.end_time) == (event.start_time, wait.start_time)
    assert wait.end_time <= route.start_time <= route.end_time <= call.start_time  # type: ignore[operator]
    assert call.end_time <= answer.start_time <= answer.end_time == event.end_time  # type: ignore[operator]
    assert of(event) == {
        "forebay.trace.kept": "sampled",
        "forebay.restored": False,
        "forebay.request_id": "r1",
        "forebay.position": "in@1",
        "forebay.event.time_ms": 5,
        "forebay.journaled": False,
    }
    assert of(route).pop("forebay.route.expected_s") > 0
    assert {name: value for name, value in of(route).items() if not name.endswith("_s")} == {
        "forebay.replica": engine.url,
        "forebay.route.policy": "expected_ttft",
        "forebay.route.replicas": 1,
        "forebay.route.avoided": 0,
        "forebay.route.requests": 1,
        "forebay.route.prompt_tokens": 8,
        "forebay.route.uncached_tokens": 8.0,
    }
    host, port = engine.url.removeprefix("http://").split(":")
    assert call.kind is SpanKind.CLIENT
    assert of(call) == {
        otel.OPERATION: "chat",
        otel.PROVIDER: "openai",
        otel.REQUEST_MODEL: "m",
        otel.REQUEST_MAX_TOKENS: 128,
        otel.REQUEST_STREAM: True,
        otel.SERVER_ADDRESS: host,
        otel.SERVER_PORT: int(port),
        otel.INPUT_TOKENS: 5,
        otel.OUTPUT_TOKENS: 3,
        otel.CACHED_TOKENS: 0,
        otel.RESPONSE_FINISH_REASONS: ("stop",),
    }
    sent = {name.lower(): value for name, value in engine.sent[0].headers.items()}
    assert sent["traceparent"] == f"00-{'-'.join(ids(call))}-01"


async def test_first_token_is_an_event_of_the_call(replica: FakeReplica) -> None:
    traced = Traced(replica.url)
    traced.event(item())
    await traced.answer()
    (call,) = named(traced.spans(), "chat m")
    (first,) = call.events
    assert first.name == "first token"
    assert call.start_time <= first.timestamp <= call.end_time  # type: ignore[operator]
    after_s = of(call)[otel.RESPONSE_FIRST_CHUNK_S]
    assert after_s * 1e9 == pytest.approx(first.timestamp - (call.start_time or 0), abs=1000)


async def test_repeated_call_has_the_cause_of_the_previous_one(replica: FakeReplica) -> None:
    traced = Traced(replica.url)
    traced.event(item(text="((fault:500x1))((fault:emptyx2))"))
    (result,) = await traced.answer()
    assert isinstance(result, Result)
    spans = traced.spans()
    first, second, third = calls = named(spans, "chat m")
    assert [of(call).get(otel.ERROR_TYPE) for call in calls] == ["server_fault", "empty_answer", None]
    assert [call.status.status_code for call in calls] == [
        StatusCode.ERROR,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    assert (of(second)["http.request.resend_count"], of(third)["http.request.resend_count"]) == (1, 2)
    assert of(third)["forebay.retry.cause"] == "empty_answer"
    assert otel.ERROR_TYPE not in of(spans[0])
    assert "http.request.resend_count" not in of(first)


@pytest.mark.heavy
async def test_stalled_call_ends_with_a_timeout(replica: FakeReplica) -> None:
    traced = Traced(replica.url, timeout_s=0.2)
    traced.event(item(text="((fault:hang))"))
    (letter,) = await traced.answer()
    assert isinstance(letter, DeadLetter)
    spans = traced.spans()
    assert {of(call)[otel.ERROR_TYPE] for call in named(spans, "chat m")} == {letter.cause}
    assert of(spans[0])[otel.ERROR_TYPE] == letter.cause


@pytest.mark.heavy
async def test_without_a_replica_the_route_fails() -> None:
    traced = Traced("http://127.0.0.1:1", deadline_s=0.1)
    traced.event(item())
    (letter,) = await traced.answer()
    assert isinstance(letter, DeadLetter)
    routes = named(traced.spans(), "route")
    assert {of(route)[otel.ERROR_TYPE] for route in routes} == {letter.cause}


async def test_prefill_elsewhere_is_a_separate_call(replica: FakeReplica) -> None:
    prefill = FakeReplica(QUICK)
    await prefill.start()
    traced = Traced(replica.url, prefill=prefill.url)
    traced.event(item())
    await traced.answer()
    await prefill.stop()
    first, second = named(traced.spans(), "chat m")
    ports = [int(one.url.rpartition(":")[2]) for one in (prefill, replica)]
    assert [of(call)[otel.SERVER_PORT] for call in (first, second)] == ports
    assert [of(call).get("forebay.phase") for call in (first, second)] == ["prefill", None]
    assert "http.request.resend_count" not in of(second)


async def test_cancelled_prefill_span_ends(replica: FakeReplica) -> None:
    traced = Traced(replica.url)
    traced.event(item())
    asked = next(iter(traced.traces._asked.values()))
    asked.route(asked.submitted_s)
    asked.call(replica.url, Request("r", "m"), asked.submitted_s, streamed=True)
    await traced.answer()
    spans = traced.spans()
    (event,) = named(spans, "event")
    cut = [span for span in spans if of(span).get(otel.ERROR_TYPE) == "cancelled"]
    assert [span.name for span in cut] == ["route", "chat m"]
    assert all(span.start_time <= span.end_time <= event.end_time for span in cut)  # type: ignore[operator]


@pytest.mark.parametrize(("share", "flag"), [("0", "00"), ("1", "01")])
async def test_sampling_follows_the_environment_variables(
    share: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
    engine = CannedEngine([card("m")], {CHAT_PATH: answer_of("yes")})
    await engine.start()
    traced = Traced(engine.url)
    traced.event(item())
    await traced.answer()
    await engine.stop()
    assert bool(traced.spans()) == (share == "1")
    # The replica must not begin a trace by itself.
    sent = {name.lower(): value for name, value in engine.sent[0].headers.items()}
    assert sent["traceparent"].endswith(f"-{flag}")


async def test_trace_of_a_records_headers_is_continued() -> None:
    engine = CannedEngine([card("m")], {CHAT_PATH: answer_of("yes")})
    await engine.start()
    traced = Traced(engine.url)
    traced.event(item(1, headers={"traceparent": PARENT.encode(), "tracestate": b"a=b"}))
    traced.event(item(2, headers={"traceparent": b"00-broken", "tracestate": b"a=b"}))
    traced.event(item(3, headers={"traceparent": (PARENT[:-1] + "0").encode()}))
    await traced.answer()
    await engine.stop()
    first, second = named(traced.spans(), "event")
    assert first.parent is not None
    assert f"00-{ids(first)[0]}-{first.parent.span_id:016x}-01" == PARENT
    assert second.parent is None
    sent = [{name.lower(): value for name, value in each.headers.items()} for each in engine.sent]
    assert [each["traceparent"][3:35] for each in sent] == [ids(first)[0], ids(second)[0], ids(first)[0]]
    assert [each["traceparent"][-2:] for each in sent] == ["01", "01", "00"]
    assert [each.get("tracestate") for each in sent] == ["a=b", None, None]


async def test_call_moved_to_another_replica_has_its_cause(replica: FakeReplica) -> None:
    other = FakeReplica(QUICK)
    await other.start()
    traced = Traced(replica.url, other.url)
    traced.event(item(text="((fault:503x1))"))
    await traced.answer()
    await other.stop()
    calls = named(traced.spans(), "chat m")
    # Each replica fails once; the other may not be up yet.
    failed = len({of(call)[otel.SERVER_PORT] for call in calls})
    assert [of(call).get(otel.ERROR_TYPE) for call in calls] == ["overloaded"] * failed + [None]


async def test_dead_letters_and_slow_events_are_kept(
    replica: FakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    traced = Traced(replica.url)
    for _ in range(100):
        traced.counts.event_s.add(5.0)
    traced.event(item(1))
    traced.event(item(2, text="((fault:400))"))
    late = item(3)
    traced.event(replace(late, read_ms=late.read_ms - 60_000))
    traced.traces.refused(DeadLetter(b"not JSON", "malformed_record", f"not JSON: {SECRET}", position="in@4"))
    await traced.answer()
    events = {of(span).get("forebay.position"): of(span) for span in named(traced.spans(), "event")}
    assert {position: found["forebay.trace.kept"] for position, found in events.items()} == {
        "in@2": "dead_letter",
        "in@3": "slow",
        "in@4": "dead_letter",
    }
    assert events["in@2"][otel.ERROR_TYPE] == "bad_request"
    assert events["in@4"][otel.ERROR_TYPE] == "malformed_record"


async def test_equally_long_results_are_not_slow(
    replica: FakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    sent: list[str] = []

    class Spans:
        def begin(self, headers: object) -> Any:
            return EventSpans.begin(spans, headers)  # type: ignore[arg-type]

        def send(self, trace: Any, kept: str, now_s: float) -> None:
            sent.append(kept)

        def close(self) -> None:
            spans.close()

    clock = ManualClock()
    spans = EventSpans("p", 2048, lambda _: None, clock, exporter=InMemorySpanExporter())
    counts = InferenceCounters()
    traces = EventTraces(Spans(), counts, clock)
    machine = stateless(lambda name: DictStore())()
    for took_s in [1.0] * 300 + [1.2, 0.5]:
        event = KeyedEvent("r", "", Event(b"", {}), clock.wall_ms() + 100 - round(1000 * took_s))
        traces.take(0, machine.event(event, encode(event), lambda: Times(0)))
        clock.advance(0.1)
        counts.event_s.add(took_s)
        answer = Result("r", "", {}, "yes", Usage(), 1, event.read_ms, 0.0, 0.0)
        traces.take(0, machine.answered("r", answer, lambda: Times(0)))
    traces.close()
    assert sent == ["slow"]


async def test_restored_event_starts_another_trace(replica: FakeReplica) -> None:
    traced = Traced(replica.url)
    event = item()
    read_ms = event.read_ms - 60_000
    traced.event(replace(event, read_ms=read_ms))
    assert traced.spans() == []
    traced.begin()
    await traced.answer()
    spans = traced.spans()
    # When it was accepted is not known any more.
    assert [span.name for span in spans] == ["event", "wait", "route", "chat m", "answer"]
    assert of(spans[0])["forebay.restored"] is True
    assert spans[0].start_time == read_ms * 10**6


async def test_program_event_is_one_trace(replica: FakeReplica) -> None:
    traced = Traced(replica.url, machines=ProgramMachines(Remember(), StateLimits()))
    traced.event(item(1))
    traced.event(item(2))
    results = await traced.answer()
    assert len(results) == 2
    spans = traced.spans()
    own: dict[int, list[ReadableSpan]] = {}
    for number in (1, 2):
        (event,) = [one for one in named(spans, "event") if of(one)["forebay.request_id"] == f"r{number}"]
        own[number] = [span for span in spans if ids(span)[0] == ids(event)[0]]
        assert [span.name for span in own[number]] == ["event", "read", "wait", "route", "chat m", "answer"]
    # The second one waits for its turn in the key.
    (wait,), (answer,) = named(own[2], "wait"), named(own[1], "answer")
    assert wait.end_time >= answer.start_time  # type: ignore[operator]


async def test_spans_hold_neither_contents_nor_keys(
    replica: FakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.script = replace(QUICK, api_key=SECRET)
    monkeypatch.setenv("THE_KEY", SECRET)
    traced = Traced(replica.url, key=SecretRef(env="THE_KEY"))
    traced.event(item(1, text=f"my {SECRET}"))
    traced.event(item(2, text=f"my {SECRET} ((fault:refusal))"))
    result, letter = await traced.answer()
    assert isinstance(result, Result)
    assert isinstance(letter, DeadLetter)
    text = "".join(span.to_json() for span in traced.spans())
    assert "chat m" in text
    for unwanted in (SECRET, "judge", "ann", str(result.answer), letter.detail):
        assert unwanted not in text


class Stuck(SpanExporter):
    """A collector that does not answer until it is `free`."""

    def __init__(self) -> None:
        self.begun, self.free = threading.Event(), threading.Event()
        self.exported = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.begun.set()
        assert self.free.wait(60)
        self.exported += len(spans)
        return SpanExportResult.FAILURE


def refuse(traces: EventTraces, many: int) -> None:
    for _ in range(many):
        traces.refused(DeadLetter(b"", "malformed_record", "not JSON"))


def test_stuck_exporter_blocks_nothing_and_drops_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    exporter, dropped, clock = Stuck(), [0], SystemClock()
    spans = EventSpans("p", 1024, dropped.append, clock, exporter=exporter)
    traces = EventTraces(spans, InferenceCounters(), clock)
    refuse(traces, 512)
    assert exporter.begun.wait(60)
    refuse(traces, 512 + 300)
    assert dropped[-1] == 300
    assert "spans of traces were dropped" in caplog.text
    exporter.free.set()
    traces.close()
    # Those that the collector refuses count, too.
    assert dropped[-1] == 300 + exporter.exported == 1324


def test_operator_counts_dropped_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    counts = InferenceCounters()
    traces = open_event_traces("p", counts, SystemClock())
    assert traces is not None
    refuse(traces, 3)
    traces.close()
    assert counts.dropped_spans == 3


@pytest.mark.heavy
def test_opentelemetry_is_imported_only_with_its_option() -> None:
    names = "[name for name in sys.modules if name.startswith('opentelemetry')]"
    program = f"import sys, forebay.flink.infer, forebay.pipeline.preflight; print({names})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none"])
def test_environment_variables_can_turn_traces_off(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable.split("="))
    assert open_event_traces("p", InferenceCounters(), SystemClock()) is None
    assert open_event_traces(None, InferenceCounters(), SystemClock()) is None
