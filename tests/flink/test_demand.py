"""A subtask's demand report and its topics' backlog, with a fleet that answers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from tests.harness.clock import ManualClock

from forebay.clock import SystemClock
from forebay.engine.prompt import FieldTemplate, PromptTemplate
from forebay.errors import SettingError
from forebay.fleet.autoscale.base import ScalingLimits, ServiceClass, Timings, Tokens
from forebay.fleet.autoscale.demand import read_reports
from forebay.fleet.autoscale.meter import COUNTED_S, TopicBacklog, TopicQueue, encode_backlog
from forebay.fleet.autoscale.settings import ScalingLink, ScalingSettings
from forebay.fleet.client import FleetClient
from forebay.fleet.config import FleetConfig, FleetEngineFactory
from forebay.fleet.disaggregated import engine_factory
from forebay.fleet.discovery import FixedReplicas, ScaledReplicas, ScaledReplicaSet, write_listing
from forebay.flink import demand
from forebay.flink.demand import PATIENCE_S, QueueReader
from forebay.flink.metrics import NOTHING_DUE_S, InferenceCounters, ScalingGauges
from forebay.flink.request_handler import EventClasses, InferenceSpec, OpenRequestHandler
from forebay.pipeline.backlog import page_served
from forebay.ports import free_port
from forebay.records import Event, KeyedEvent, Result, Usage
from forebay.testing import ScriptedEngineFactory
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Fixed

SCRIPT = ReplicaScript(models=("m",), delay=Fixed(0.05))
ALARM = ServiceClass("alarm", 1.0)
SETTINGS = ScalingSettings(ScalingLimits(0, 4), slo_s=30.0, timings=Timings(boot_s=5.0, interval_s=0.01))


@pytest.fixture(autouse=True)
def _frequent_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "REPORT_S", 0.01)


def item(number: int) -> KeyedEvent:
    fields = {"text": f"event {number}"}
    return KeyedEvent(f"id-{number}", "", Event(b"x" * 40, fields), read_ms=1_000 * number)


def spec(replicas: FixedReplicas | ScaledReplicas, link: ScalingLink) -> InferenceSpec:
    fleet = FleetConfig(replicas, model="m", check_s=0.05, scaled=True)
    return InferenceSpec(FleetEngineFactory(fleet), "m", PromptTemplate("{{ text }}"), scaling=link)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_demand_is_a_file_while_the_subtask_runs(tmp_path: Path) -> None:
    folder, listed = tmp_path / "demand", tmp_path / "replicas.json"
    folder.mkdir()
    write_listing(listed, ScaledReplicaSet((), 3, 1))
    counts = InferenceCounters()
    call = spec(ScaledReplicas(str(listed), every_s=0.01), ScalingLink(SETTINGS, str(folder)))

    def published() -> float:
        return sum(part.tokens.requests for one in read_reports(folder).values() for part in one.waiting)

    async with FakeReplica(SCRIPT) as replica:
        handler = await OpenRequestHandler(call)(counts)
        items = [item(number) for number in range(5)]
        for each in items:
            handler.accept(each, restored=False)
        answers = [asyncio.ensure_future(handler.answer(each)) for each in items[:3]]
        await until(lambda: published() == 5)
        assert counts.scaling is not None
        assert counts.scaling.backlog_tokens > 0
        # Read in 1970, due 30 s later.
        assert counts.scaling.next_deadline_s < -1_000_000_000
        write_listing(listed, ScaledReplicaSet((replica.url,), 4, 2))
        assert all(isinstance(each, Result) for each in await asyncio.gather(*answers))
        await until(lambda: [one.done.requests for one in read_reports(folder).values()] == [3])
        await until(lambda: counts.scaling is not None and counts.scaling.wanted_replicas == 2)
        (report,) = read_reports(folder).values()
        assert published() == 2
        assert (report.arrived.requests, report.done.requests) == (5, 3)
        assert report.done.output > 0
        assert (report.listing, report.usable, report.at_replicas) == (4, 1, {replica.url: 0})
        await handler.close()
    assert list(folder.iterdir()) == []


@pytest.mark.heavy
async def test_earliest_due_by_class_is_sent_first(tmp_path: Path) -> None:
    link = ScalingLink(replace(SETTINGS, other_classes=(ALARM,)), str(tmp_path))
    classes = EventClasses(FieldTemplate("{{ tier }}", what="classes"), SETTINGS.classes[0], (ALARM,))
    clock, order, full = SystemClock(), [], list[bool]()
    async with FakeReplica(ReplicaScript(models=("m",), delay=Fixed(0.02), slots=1, max_calls=2)) as replica:
        call = replace(spec(FixedReplicas((replica.url,)), link), classes=classes)
        handler = await OpenRequestHandler(call)(InferenceCounters())

        async def ask(number: int, tier: str) -> None:
            event = Event(b"x", {"text": f"event {number}", "tier": tier})
            each = KeyedEvent(f"id-{number}", "", event, read_ms=clock.wall_ms())
            handler.accept(each, restored=False)
            assert isinstance(await handler.answer(each), Result)
            order.append(tier)
            full.extend(one.full for one in read_reports(tmp_path).values())

        default = [asyncio.ensure_future(ask(number, "none")) for number in range(30)]
        await until(lambda: len(order) >= 3)
        alarms = [asyncio.ensure_future(ask(number, "alarm")) for number in range(30, 33)]
        await asyncio.gather(*default, *alarms)
        await until(lambda: [one.done.requests for one in read_reports(tmp_path).values()] == [33])
        (report,) = read_reports(tmp_path).values()
        counts = {name: tokens.requests for name, tokens in report.by_class.items()}
        assert counts == {"default": 30, "alarm": 3}
        await handler.close()
    last = max(place for place, tier in enumerate(order) if tier == "alarm")
    assert last < len(order) - 10, order
    assert any(full), "while requests waited for room"


class Cached:
    def accept(self, item: KeyedEvent, *, restored: bool) -> None: ...

    async def answer(self, item: KeyedEvent) -> Result:
        return Result(item.id, "", {}, "x", Usage(100, 5, 90), 1, 0, 0.1, 0.1)

    async def close(self) -> None: ...


async def test_prefill_replicas_count_and_requests_are_at_decoders(tmp_path: Path) -> None:
    counts = InferenceCounters()
    async with FakeReplica(SCRIPT) as one, FakeReplica(SCRIPT) as two, FakeReplica(SCRIPT) as three:
        fleet = FleetConfig(FixedReplicas((one.url,)), model="m", check_s=0.05)
        engine = engine_factory(fleet, FixedReplicas((two.url, three.url)))
        link = ScalingLink(SETTINGS, str(tmp_path))
        call = InferenceSpec(engine, "m", PromptTemplate("{{ text }}"), scaling=link)
        handler = await OpenRequestHandler(call)(counts)
        urls = {one.url, two.url, three.url}

        def seen() -> bool:
            return [one.usable for one in read_reports(tmp_path).values()] == [3]

        await until(seen)
        each = item(1)
        handler.accept(each, restored=False)
        assert isinstance(await handler.answer(each), Result)
        await until(lambda: [one.done.requests for one in read_reports(tmp_path).values()] == [1])
        (report,) = read_reports(tmp_path).values()
        assert set(report.at_replicas) == urls
        await handler.close()
    assert sum(two.report().calls.values()) + sum(three.report().calls.values()) == 1


async def test_prompts_of_done_requests_count_fully(tmp_path: Path) -> None:
    client = FleetClient(FleetConfig(FixedReplicas(("http://127.0.0.1:9",)), model="m"))
    link = ScalingLink(SETTINGS, str(tmp_path))
    handler = demand.MeteredHandler(Cached(), client, link, ScalingGauges(), SystemClock(), model="m")
    one = item(1)
    handler.accept(one, restored=False)
    await handler.answer(one)
    await until(lambda: [one.done.requests for one in read_reports(tmp_path).values()] == [1])
    (report,) = read_reports(tmp_path).values()
    assert report.done == Tokens(1, 100, 5)
    await handler.close()
    await client.close()


async def test_idle_subtask_uses_the_newest_list(tmp_path: Path) -> None:
    """Otherwise no replica could ever be removed."""
    folder, listed = tmp_path / "demand", tmp_path / "replicas.json"
    folder.mkdir()
    write_listing(listed, ScaledReplicaSet((), 3, 1))
    call = spec(ScaledReplicas(str(listed), every_s=0.01), ScalingLink(SETTINGS, str(folder)))
    handler = await OpenRequestHandler(call)(InferenceCounters())
    for version in (3, 4):
        write_listing(listed, ScaledReplicaSet((), version, 1))
        await until(lambda: [one.listing for one in read_reports(folder).values()] == [version])  # noqa: B023
    await handler.close()


async def test_without_a_folder_an_idle_subtask_decides() -> None:
    counts = InferenceCounters()
    async with FakeReplica(SCRIPT) as replica:
        call = spec(FixedReplicas((replica.url,)), ScalingLink(SETTINGS))
        handler = await OpenRequestHandler(call)(counts)
        await until(lambda: counts.scaling is not None and counts.scaling.wanted_replicas is not None)
        await handler.close()


async def test_without_a_folder_the_subtask_publishes_its_decision(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, demand.__name__)
    counts, listed = InferenceCounters(), tmp_path / "replicas.json"
    async with FakeReplica(SCRIPT) as replica:
        call = spec(ScaledReplicas(str(listed), every_s=0.01), ScalingLink(SETTINGS, subtasks=2))
        handler = await OpenRequestHandler(call)(counts)
        gauges = counts.scaling
        assert gauges is not None
        assert (gauges.backlog_tokens, gauges.next_deadline_s) == (0, NOTHING_DUE_S)
        one = item(1)
        handler.accept(one, restored=True)
        await until(lambda: gauges.backlog_tokens > 0)
        # The list of replicas was not read yet: seeing no replicas decides nothing.
        assert gauges.wanted_replicas is None
        write_listing(listed, ScaledReplicaSet((replica.url,)))
        assert isinstance(await handler.answer(one), Result)
        await until(lambda: (gauges.wanted_replicas or 0) >= 1)
        await handler.close()
    changes = [record for record in caplog.records if record.name == demand.__name__]
    assert changes[0].levelno == logging.INFO
    assert re.fullmatch(
        r"\d replicas are wanted, 1 are ready, 0 start: .+ s of work wait .+", changes[0].message
    )


async def test_topic_backlog_counts_if_reported() -> None:
    counts, port = InferenceCounters(), free_port()
    with page_served(port, lambda: TopicBacklog(10_000, 10**6, 10**6, 0.0)):
        async with FakeReplica(SCRIPT) as replica:
            link = ScalingLink(SETTINGS, queue_url=f"http://localhost:{port}/")
            handler = await OpenRequestHandler(spec(FixedReplicas((replica.url,)), link))(counts)
            await until(lambda: counts.scaling is not None and (counts.scaling.wanted_replicas or 0) > 1)
            await handler.close()


def test_changed_wanted_number_alone_is_published() -> None:
    """Nothing else flushes the metrics of a stream without events."""
    gauges, published = ScalingGauges(), list[int | None]()
    gauges.notify = lambda: published.append(gauges.wanted_replicas)
    for wanted in (1, 1, 0):
        gauges.publish(wanted)
        gauges.set(gauges.wanted_replicas, 0, None)
    assert published == [1, 0]


@pytest.mark.parametrize("folder", [True, False])
async def test_next_subtask_has_the_learned_state(
    folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answer lengths; if the subtask decides itself, also load, speed and boot times."""
    monkeypatch.setattr(demand, "KEEP_S", 0.01)
    link = ScalingLink(SETTINGS, str(tmp_path) if folder else None)

    async def subtask(found: bytes | None, answers: int) -> tuple[ScalingGauges, Tokens]:
        client = FleetClient(FleetConfig(FixedReplicas(("http://127.0.0.1:9",)), model="m"))
        gauges = ScalingGauges()
        gauges.learned.found = found
        published = list[bytes | None]()
        gauges.notify = lambda: published.append(gauges.learned.newest)
        handler = demand.MeteredHandler(Cached(), client, link, gauges, SystemClock(), model="m")
        await until(lambda: gauges.learned.found is None and gauges.learned.newest is not None)
        assert gauges.learned.newest in published
        for one in [item(number) for number in range(answers)]:
            handler.accept(one, restored=False)
            await handler.answer(one)
        before = gauges.learned.newest
        if answers:
            await until(lambda: gauges.learned.newest is not before)
        handler.accept(item(99), restored=False)
        (waiting,) = handler._meter.report(0, sent=()).waiting
        await handler.close()
        await client.close()
        return gauges, waiting.tokens

    first, _ = await subtask(None, answers=3)
    assert first.learned.newest is not None
    parts = {"lengths", *(() if folder else ("speed", "policy deadline", "replicas", "record cost"))}
    assert set(orjson.loads(first.learned.newest)["parts"]) == parts
    _, expected = await subtask(first.learned.newest, answers=0)
    # As `Cached` answers.
    assert expected == Tokens(1, 100, 5)
    _, unknown = await subtask(b"{", answers=0)
    assert unknown == Tokens(1, 10, SETTINGS.answer_tokens)


async def test_scaling_needs_a_fleet() -> None:
    call = InferenceSpec(
        ScriptedEngineFactory(), "m", PromptTemplate("{{ text }}"), scaling=ScalingLink(SETTINGS)
    )
    with pytest.raises(SettingError, match="expected a fleet"):
        await OpenRequestHandler(call)(InferenceCounters())


BACKLOG = encode_backlog(TopicBacklog(10, 300, 40, 0.0))


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)


class Page:
    def __init__(self, answer: bytes, *rest: bytes) -> None:
        self.answer = answer
        self._rest = rest
        self.asked = 0
        self.request = b""

    @asynccontextmanager
    async def read(self, clock: ManualClock) -> AsyncIterator[TopicQueue]:
        """A reader's backlog from this server."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        queue = TopicQueue(50.0)
        port = server.sockets[0].getsockname()[1]
        reader = QueueReader(f"http://127.0.0.1:{port}/", queue, clock, every_s=0.01)
        try:
            await self.again()
            yield queue
        finally:
            await reader.close()
            server.close()

    async def again(self) -> None:
        """Return after two more requests: the answer to the first one has been processed."""
        until = self.asked + 2
        while self.asked < until:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request = await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        writer.write(self.answer)
        for part in self._rest:
            await writer.drain()
            # The one who reads has taken what came before.
            await asyncio.sleep(0.01)
            writer.write(part)
        writer.close()


async def test_reported_backlog_counts_until_it_is_too_old() -> None:
    clock, page = ManualClock(), Page(ok(BACKLOG))
    async with page.read(clock) as queue:
        assert queue.waits(clock.monotonic_s()) == Tokens(10, 300, 40)
        page.answer = ok(b"null")
        await page.again()
        assert queue.waits(clock.monotonic_s()) == Tokens(10, 300, 40)
        clock.advance(COUNTED_S + 1)
        assert queue.waits(clock.monotonic_s()) is None
        page.answer = ok(BACKLOG)
        await page.again()
        assert queue.waits(clock.monotonic_s()) == Tokens(10, 300, 40)


async def test_backlog_is_asked_for_without_compression() -> None:
    """A compressed answer is an error."""
    page = Page(ok(BACKLOG))
    async with page.read(ManualClock()):
        assert b"\r\nAccept-Encoding: identity\r\n" in page.request


async def test_answer_in_parts_is_read_whole() -> None:
    """As through a proxy."""
    whole = ok(BACKLOG)
    clock, page = ManualClock(), Page(whole[:-20], whole[-20:-10], whole[-10:])
    async with page.read(clock) as queue:
        assert queue.waits(clock.monotonic_s()) == Tokens(10, 300, 40)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ok(b"null"), "the backlog is not known yet"),
        (ok(b"<html>"), "expected a backlog, found something else"),
        (ok(b'{"records": -5}'), "expected a backlog, found something else"),
        (ok(b" " * 100_000 + BACKLOG), "sent an answer of more than 4096 bytes"),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", "found 302"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "found 500"),
        (b"no HTTP\r\n\r\n", "did not speak HTTP"),
        (b"", "closed the connection before it answered"),
    ],
    ids=["null", "html", "negative", "long", "redirect", "500", "no http", "nothing"],
)
async def test_other_answers_are_unknown_and_logged_if_they_persist(
    answer: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, page = ManualClock(), Page(answer)
    with caplog.at_level(logging.WARNING):
        async with page.read(clock) as queue:
            assert queue.waits(clock.monotonic_s()) is None
            assert not caplog.records
            clock.advance(PATIENCE_S)
            await page.again()
            await page.again()
            assert queue.waits(clock.monotonic_s()) is None
    (published,) = [record.message for record in caplog.records]
    assert "scaling uses only the job's own" in published
    assert why in published
