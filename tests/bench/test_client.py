"""Sending and recording a load."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.harness.clock import VirtualLoop, in_virtual_time

from forebay.bench.client import INTERRUPTED, LoadProgress, check_files, measure, run_load
from forebay.bench.load.schedules import Bursts, ClosedLoop, Constant, Poisson, RequestLoad, make_load
from forebay.bench.load.workloads import Exactly, RandomTokens, SessionWorkload
from forebay.bench.records import LoadRequest, LoadRun, RequestRecord
from forebay.bench.targets.base import OnPiece, Piece
from forebay.bench.targets.openai import OpenAiTarget
from forebay.errors import Overloaded, SetupError, Unreachable
from forebay.testing.replica import ReplicaProcess, ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

SHORT = RandomTokens(Exactly(4), Exactly(2))
WORK = ReplicaScript(delay=Fixed(0.002), token_s=0.001, chunks=4)


class Scripted:
    """A target that runs `script` for each request; records its concurrency."""

    name = "scripted"

    def __init__(self, script: object = None) -> None:
        self.script = script
        self.running = self.most = self.sent = 0
        self.order: list[int] = []
        self.connections = 0

    @asynccontextmanager
    async def open(self, connections: int = 1, trials: Sequence[LoadRequest] = ()) -> AsyncIterator[None]:
        self.connections = connections
        yield

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        self.running += 1
        self.sent += 1
        self.most = max(self.most, self.running)
        self.order.append(request.index)
        try:
            if self.script is not None:
                await self.script(request)  # type: ignore[operator]
            on_piece(Piece(status=200))
            on_piece(Piece())
            for _ in range(request.output_tokens):
                await asyncio.sleep(0)
                on_piece(Piece(content=True, tokens=1))
            on_piece(Piece(output_tokens=request.output_tokens, prompt_tokens=4, finish_reason="length"))
        finally:
            self.running -= 1


def check_times(run: LoadRun) -> None:
    for record in run.records:
        assert record.sent_s is not None
        assert record.due_s <= record.sent_s <= record.ended_s <= run.duration_s
        if record.answered:
            assert record.first_byte_s is not None
            times_s = [record.sent_s, record.first_byte_s, *(c.at_s for c in record.chunks), record.ended_s]
            assert times_s == sorted(times_s)


async def test_an_open_loop_waits_for_no_answer() -> None:
    all_there = asyncio.Event()
    target = Scripted()

    async def until_all_are_there(request: LoadRequest) -> None:
        if target.running == 30:
            all_there.set()
        await all_there.wait()

    target.script = until_all_are_there
    load = make_load(Poisson(3000), SHORT, 30)
    run = await run_load(target, load)
    assert run.complete
    assert [one.index for one in run.records] == list(range(30))
    assert [one.due_s for one in run.records] == [one.due_s for one in load.requests]
    assert all(one.output_tokens == 2 and len(one.chunks) == 2 and one.status == 200 for one in run.records)
    assert run.asked["schedule"] == {"kind": "poisson", "rate_per_s": 3000}
    assert run.asked["target"] == "scripted"
    assert all(one.asked_exact and one.asked_output_tokens == 2 for one in run.records)
    free = make_load(Bursts(), replace(SHORT, exact=False), 2)
    assert not any(one.asked_exact for one in (await run_load(Scripted(), free)).records)
    check_times(run)


@in_virtual_time
async def test_late_request_does_not_delay_later_ones() -> None:
    """The event loop is blocked over the due times of several requests: later ones keep theirs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    target = Scripted()

    async def block(request: LoadRequest) -> None:
        if request.index == 2:
            loop.passed(0.03)

    target.script = block
    run = await run_load(target, make_load(Constant(200), SHORT, 20))
    assert [one.due_s for one in run.records] == [index / 200 for index in range(20)]
    late = [one.sent_s - one.due_s for one in run.records if one.sent_s is not None]
    assert late[3] > 0.02
    assert late[19] < late[3]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("schedule", "connections"),
    [(Bursts(), 30), (Bursts(4, 0.02), 4), (ClosedLoop(7), 7), (Constant(1000), 6), (Constant(100), 1)],
)
def test_enough_connections_are_prepared(schedule: Bursts | ClosedLoop | Constant, connections: int) -> None:
    target = Scripted()
    measure(target, make_load(schedule, SHORT, 30))
    assert target.connections == connections


async def test_a_closed_loop_keeps_its_places_full() -> None:
    target = Scripted()
    run = await run_load(target, make_load(ClosedLoop(7), SHORT, 50))
    assert run.complete
    assert len(run.records) == 50
    assert target.most == 7
    assert target.order == list(range(50))
    check_times(run)
    # A place is due again when its last answer has ended.
    ends = [one.ended_s for one in run.records]
    assert all(any(one.due_s >= end_s for end_s in ends) for one in run.records[7:])


@pytest.mark.parametrize("schedule", [Bursts(), ClosedLoop(50), ClosedLoop(3), Constant(5000)])
async def test_turns_of_a_session_are_sequential(schedule: Bursts | ClosedLoop | Constant) -> None:
    load = make_load(schedule, SessionWorkload(5, Exactly(3), Exactly(3), Exactly(2)), 40)
    run = await run_load(Scripted(), load)
    assert run.complete
    assert len(run.records) == 40
    turns: dict[str | None, list[RequestRecord]] = {}
    for record in run.records:
        turns.setdefault(record.session, []).append(record)
    assert len(turns) == 8
    for session in turns.values():
        for before, after in pairwise(session):
            assert after.due_s >= before.ended_s


async def test_failures_are_recorded_and_others_continue() -> None:
    async def fail(request: LoadRequest) -> None:
        if request.index % 2:
            raise Overloaded("http://x answered 503: full")

    run = await run_load(Scripted(fail), make_load(Bursts(), SHORT, 10))
    assert run.complete
    assert [one.error for one in run.records] == [None, "overloaded: http://x answered 503: full"] * 5
    check_times(run)


@in_virtual_time
async def test_slow_request_ends_with_an_error() -> None:
    async def hang(request: LoadRequest) -> None:
        if request.index == 1:
            await asyncio.Event().wait()

    run = await run_load(Scripted(hang), make_load(Bursts(), SHORT, 3), timeout_s=0.05)
    assert [one.error for one in run.records] == [
        None,
        "timeout: no complete answer within 0.05 s",
        None,
    ]
    assert run.complete


async def test_stop_keeps_the_measurements() -> None:
    stop = asyncio.Event()

    async def hang(request: LoadRequest) -> None:
        if request.index == 5:
            stop.set()
        if request.index >= 4:
            await asyncio.Event().wait()

    target = Scripted(hang)
    run = await run_load(target, make_load(ClosedLoop(2), SHORT, 100), stop=stop)
    assert not run.complete
    assert [one.error for one in run.records] == [None] * 4 + [INTERRUPTED] * 2
    assert target.running == 0, "what was in flight is aborted"


async def test_target_defect_is_not_a_measurement() -> None:
    async def broken(request: LoadRequest) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_load(Scripted(broken), make_load(Bursts(), SHORT, 3))


@pytest.mark.heavy
def test_a_whole_run_against_a_server() -> None:
    with ReplicaThread(WORK) as replica:
        run = measure(OpenAiTarget(replica.url), make_load(Poisson(400), SHORT, 40))
        assert replica.report().completed == 41, "the requests, and the probe"
    assert run.complete
    assert all(one.answered and one.finish_reason == "length" for one in run.records)
    assert all(one.output_tokens == 2 for one in run.records)
    check_times(run)


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Nothing is frozen, like in a process that never froze anything."""
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    if was_frozen:
        gc.freeze()


@pytest.mark.heavy
@pytest.mark.parametrize("by_caller", [True, False])
@pytest.mark.usefixtures("unfrozen")
def test_garbage_collections_do_not_scan_the_load(by_caller: bool) -> None:
    if by_caller:
        gc.freeze()
    frozen: list[bool] = []

    async def look(request: LoadRequest) -> None:
        frozen.append(not any(one is load for one in gc.get_objects()))

    load = make_load(Bursts(), SHORT, 1)
    assert any(one is load for one in gc.get_objects())
    measure(Scripted(look), load)
    assert frozen == [True]
    assert (gc.get_freeze_count() > 0) == by_caller


class Dying(OpenAiTarget):
    """Kills its server just before request 20 is sent."""

    def __init__(self, server: ReplicaProcess) -> None:
        super().__init__(server.url)
        self._process = server

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        if request.index == 20:
            self._process.kill()
        await super().answer(request, on_piece)


@pytest.mark.heavy
def test_a_server_that_dies_half_way() -> None:
    with ReplicaProcess(WORK) as replica:
        run = measure(Dying(replica), make_load(ClosedLoop(4), SHORT, 40))
    assert run.complete
    assert len(run.records) == 40
    assert sum(one.answered for one in run.records) >= 17, "three others were in flight"
    assert all(str(one.error).startswith("unreachable: ") for one in run.records[20:])


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(Unreachable, match=r"no connection .*is it there"):
        measure(OpenAiTarget("http://127.0.0.1:9"), make_load(Bursts(), SHORT, 1))


def test_ctrl_c_keeps_the_measurements() -> None:
    def own(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGINT, own)

    async def interrupt(request: LoadRequest) -> None:
        if request.index == 3:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

    try:
        run = measure(Scripted(interrupt), make_load(ClosedLoop(1), SHORT, 10))
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    assert not run.complete
    assert [one.answered for one in run.records] == [True] * 3 + [False]


@contextmanager
def file_limit(soft: int, hard: int) -> Iterator[None]:
    """Patch `getrlimit` and `setrlimit` with these limits."""
    found = [(soft, hard)]
    patch = pytest.MonkeyPatch()
    patch.setattr(resource, "getrlimit", lambda _: found[-1])
    patch.setattr(resource, "setrlimit", lambda _, limits: found.append(limits))
    try:
        yield
        assert found[-1][0] <= hard
    finally:
        patch.undo()


def closed(concurrency: int) -> RequestLoad:
    return make_load(ClosedLoop(concurrency), SHORT, 1)


@pytest.mark.heavy
def test_more_at_a_time_than_files_may_be_open_is_refused() -> None:
    with file_limit(256, 4096):
        check_files(closed(100))
        check_files(closed(4000))
        assert 4000 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 4096
        with pytest.raises(SetupError, match=r"up to 5000 requests .* 4096 files: raise the limit"):
            check_files(closed(5000))
        check_files(make_load(Constant(1000), SHORT, 6000))
        with pytest.raises(SetupError, match="up to 6000 requests in flight"):
            check_files(make_load(Bursts(), SHORT, 6000))


def test_a_defect_of_a_target_ends_the_run_at_once() -> None:
    async def broken(request: LoadRequest) -> None:
        raise RuntimeError("a defect")

    target = Scripted(broken)
    with pytest.raises(RuntimeError, match="a defect"):
        measure(target, make_load(ClosedLoop(1), SHORT, 50, seed=1))
    assert target.sent == 1


async def test_a_stop_before_the_first_answer_gives_an_empty_run() -> None:
    stop = asyncio.Event()
    stop.set()
    run = await run_load(Scripted(), make_load(Constant(1), SHORT, 3), stop=stop)
    assert (run.complete, run.records, run.duration_s) == (False, (), 0.0)


@pytest.mark.heavy
async def test_progress_is_reported() -> None:
    seen: list[LoadProgress] = []
    told = [asyncio.Event(), asyncio.Event()]

    async def wait(request: LoadRequest) -> None:
        await told[0].wait()
        if request.index == 0:
            raise Overloaded("full")
        if request.index == 1:
            await told[1].wait()

    def tell(progress: LoadProgress) -> None:
        seen.append(progress)
        told[len(seen) > 1].set()

    await run_load(Scripted(wait), make_load(Bursts(), SHORT, 3), on_progress=tell)
    assert [(one.requests, one.sent, one.ended, one.failed) for one in seen[:2]] == [
        (3, 3, 0, 0),
        (3, 3, 2, 1),
    ]
