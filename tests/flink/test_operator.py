"""The operator without Flink: how long it blocks its input without room, and events after the end."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pyflink.datastream import TimeDomain
from tests.flink.test_commit_times import Checkpoints
from tests.harness.keyed_state import Context, KeyedState, WallClock, held_keys
from tests.harness.programs import AskLater, Remember

from forebay.apps.sessions import Sessions
from forebay.apps.summaries.settings import SummarySpec
from forebay.codec import decode, encode
from forebay.flink import backpressure, operator
from forebay.flink.backpressure import ANSWERS, FACTOR, LOOK_S, MAX_SHARE, ROOM_WAIT_S
from forebay.flink.commit_times import CommitTimes
from forebay.flink.infer import QUEUES
from forebay.flink.mailbox import WOKEN_MS
from forebay.flink.operator import InferenceOperator
from forebay.flink.request_pool import MOST_TAKEN, PoolLoad
from forebay.flink.shard_timers import END_ROUNDS
from forebay.flink.types import END_OF_INPUT_MS
from forebay.records import JSON, DeadLetter, Event, KeyedEvent, Message
from forebay.stateful.budget import BudgetedMachines
from forebay.stateful.key_states import PER_CHUNK, StateLimits
from forebay.stateful.machine import OpenMachines, stateless
from forebay.stateful.program import Ask, Failure, Moment, Output, Program, Step, Timer
from forebay.stateful.shard_executor import MAX_CALLS, ProgramMachines

CAPACITY = 16
HOUR_S = 3600


@dataclass
class Calls:
    """An engine's calls that answers only keys in `quick`, immediately; waiting advances the clock."""

    clock: WallClock
    quick: frozenset[str] = frozenset()
    submitted: int = 0
    answers: list[tuple[int, str, DeadLetter]] = field(default_factory=list)
    called: list[tuple[int, KeyedEvent]] = field(default_factory=list)
    call_s = 0.0
    finished = 0

    def start(self) -> None:
        pass

    def submit(self, shard: int, item: KeyedEvent, *, restored: bool = False) -> None:
        if item.key in self.quick:
            self._answer(shard, item)
        else:
            self.submitted += 1
            self.called.append((shard, item))

    def answer_all(self) -> None:
        for shard, item in self.called:
            self._answer(shard, item)
        self.called.clear()
        self.submitted = 0

    def _answer(self, shard: int, item: KeyedEvent) -> None:
        self.answers.append((shard, item.id, DeadLetter(b"", "refused", "", id=item.id, key=item.key)))

    def take(self, shard: int) -> list[tuple[str, DeadLetter]]:
        taken = [answer for answer in self.answers if answer[0] == shard][:MOST_TAKEN]
        self.answers = [answer for answer in self.answers if answer not in taken]
        return [(id, answer) for _, id, answer in taken]

    def ready(self) -> list[int]:
        return sorted({shard for shard, _, _ in self.answers})

    def has_room(self) -> bool:
        return self.submitted < CAPACITY

    def may_queue(self) -> bool:
        return self.submitted < 2 * CAPACITY

    def wait_for_room(self, timeout_s: float) -> bool:
        self.clock.advance(timeout_s)
        return self.has_room()

    def wait_ready(self, shard: int, timeout_s: float) -> bool:
        self.clock.advance(timeout_s)
        return bool(self.answers)

    def wait_any_ready(self, timeout_s: float) -> bool:
        return self.wait_ready(0, timeout_s)

    @property
    def load(self) -> PoolLoad:
        return PoolLoad(max(0, self.submitted - CAPACITY), min(CAPACITY, self.submitted), finished=0)


@dataclass
class Run:
    """A subtask with one shard, whose operator has been opened."""

    function: InferenceOperator
    calls: Calls
    clock: WallClock
    state: KeyedState = field(default_factory=KeyedState)
    later: list[tuple[float, int, int]] = field(default_factory=list)
    low_ms: int = -(2**63)
    key: int = 0

    def context(self, domain: TimeDomain | None = None) -> Any:
        return Context(self, self.clock, domain)

    def event(self, key: str, number: int, time_ms: int | None = None) -> list[Any]:
        item = KeyedEvent(f"e{number}", key, Event(b"", {"n": number}, time_ms), 0)
        return list(self.function.process_element((self.key, encode(item)), self.context()))

    def event_timer(self, time_ms: int) -> list[Any]:
        return list(self.function.on_timer(time_ms, self.context(TimeDomain.EVENT_TIME)))

    def wall_timer(self) -> list[Any]:
        """Fire the next processing-time timer when it is due."""
        time_ms, self.key = self.state.wall.pop(0)
        self.clock.advance(max(0, time_ms - self.clock.wall_ms()) / 1000)
        return list(self.function.on_timer(time_ms, self.context(TimeDomain.PROCESSING_TIME)))


async def nobody(_counts: Any) -> Any:
    """Opens nothing."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(
        program: Program[Any],
        quick: Iterable[str] = (),
        wrapped: Callable[[OpenMachines], OpenMachines] = lambda machines: machines,
        **limits: int,
    ) -> Run:
        clock = WallClock()
        calls = Calls(clock, frozenset(quick))
        monkeypatch.setattr(operator, "RequestPool", lambda *_, **__: calls)
        monkeypatch.setattr(operator, "held_keys", held_keys)
        monkeypatch.setattr(backpressure, "is_cancelled", lambda: False)
        machines = ProgramMachines(program, StateLimits(shard_queue=QUEUES * CAPACITY, **limits))
        function = InferenceOperator(nobody, wrapped(machines), capacity=CAPACITY, clock=clock)
        made = Run(function, calls, clock)
        function.open(made.context())
        return made

    return run


@pytest.mark.parametrize("one_core", [True, False])
def test_only_an_operator_without_users_code_shares_a_core(
    one_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WallClock()
    calls, joined, given = Calls(clock, frozenset()), list[bool](), dict[str, Any]()
    shared = SimpleNamespace(join=lambda: joined.append(True))
    monkeypatch.setattr(operator, "SHARED", shared)
    monkeypatch.setattr(operator, "RequestPool", lambda *_, **more: given.update(more) or calls)
    monkeypatch.setattr(operator, "held_keys", held_keys)
    function = InferenceOperator(nobody, stateless, capacity=CAPACITY, clock=clock, one_core=one_core)
    function.open(Run(function, calls, clock).context())
    assert (given["core"] is shared, joined) == (one_core, [True] * one_core)


def grown(accepted_s: list[float]) -> list[int]:
    """Events accepted between 36 s and 360 s of an outage, and from then to one hour."""
    within = [sum(at_s <= end_s for at_s in accepted_s) for end_s in (36, 360, HOUR_S)]
    return [within[1] - within[0], within[2] - within[1]]


@pytest.mark.heavy
@pytest.mark.parametrize("keys", [1, 3, 1_000_000])
def test_queue_grows_logarithmically_during_an_outage(keys: int, opened: Any) -> None:
    run = opened(Remember(), queue=8)
    accepted_s: list[float] = []
    while run.clock.monotonic_s() < HOUR_S:
        assert run.event(f"k{len(accepted_s) % keys}", len(accepted_s)) == []
        accepted_s.append(run.clock.monotonic_s())
        assert len(accepted_s) < 10_000, "the queue grows without bound"
    # Room for the queues of all keys or twice the slots; then ever more slowly: as many in the tenfold time.
    expected = math.log(10) * (1 / MAX_SHARE if keys <= 3 else ANSWERS / FACTOR)
    assert grown(accepted_s) == pytest.approx([expected, expected], rel=0.05)


def test_no_checkpoint_while_an_event_waits_for_room(opened: Any) -> None:
    run = opened(Remember(), queue=1)
    checkpoints: list[float] = []
    mails = SimpleNamespace(run_mails=lambda: checkpoints.append(run.clock.monotonic_s()))
    run.function._mailbox = mails
    for number in range(4 * CAPACITY):
        run.event(f"k{number % 3}", number)
    assert run.clock.monotonic_s() > 0, "no event has waited"
    assert checkpoints == []


@dataclass
class Barrier:
    waits: bool = False

    def __call__(self, _context: Any) -> Callable[[], bool]:
        return lambda: self.waits


@pytest.fixture
def barrier(monkeypatch: pytest.MonkeyPatch) -> Barrier:
    made = Barrier()
    monkeypatch.setattr(operator, "barrier_look", made)
    return made


def waited_s(run: Run, number: int) -> float:
    """How long an event with a key of its own blocks the input."""
    begin_s = run.clock.monotonic_s()
    run.event(f"k{number}", number)
    return run.clock.monotonic_s() - begin_s


def test_barrier_waits_for_no_event_without_a_slot(barrier: Barrier, opened: Any) -> None:
    run = opened(Remember())
    numbers = itertools.count()
    while run.calls.has_room():
        assert waited_s(run, next(numbers)) == 0
    assert waited_s(run, next(numbers)) == pytest.approx(ROOM_WAIT_S)
    barrier.waits = True
    assert waited_s(run, next(numbers)) == pytest.approx(LOOK_S)


def test_barriers_extend_a_full_queue_by_a_quarter_at_most(barrier: Barrier, opened: Any) -> None:
    run = opened(Remember())
    numbers = itertools.count()
    while run.calls.may_queue():
        run.event(f"k{next(numbers)}", 0)
    # The outage that fills the queue begins.
    assert waited_s(run, next(numbers)) == pytest.approx(ROOM_WAIT_S)
    run.clock.advance(HOUR_S)
    barrier.waits = True
    while run.calls.load.pending < 1.25 * CAPACITY:
        assert waited_s(run, next(numbers)) == pytest.approx(LOOK_S)
    assert waited_s(run, next(numbers)) > HOUR_S / ANSWERS


@pytest.mark.parametrize("shards", [1, MOST_TAKEN + 3])
@pytest.mark.parametrize("waits", [True, False])
def test_barrier_waits_for_few_answers_of_many(
    waits: bool, shards: int, barrier: Barrier, opened: Any
) -> None:
    run = opened(Remember())
    woken: list[int] = []

    def each(keys: Iterable[int]) -> Iterator[int]:
        for run.key in keys:
            yield run.key

    wake = partial(woken.append, 1)
    run.function._waker = SimpleNamespace(works=True, add=lambda *_: None, each=each, wake=wake)
    answers = MOST_TAKEN + 3
    for number in range(answers):
        run.key = number % shards
        run.event(f"k{number}", number)
    run.calls.answer_all()
    barrier.waits = waits
    first = run.event_timer(WOKEN_MS)
    most = MOST_TAKEN if shards == 1 else 1
    assert (len(first), len(woken)) == ((most, 1) if waits else (answers, 0))
    barrier.waits = False
    assert len(first + run.event_timer(WOKEN_MS)) == answers


@pytest.mark.parametrize("waits", [True, False])
def test_barrier_waits_for_few_timers_of_many(waits: bool, barrier: Barrier, opened: Any) -> None:
    keys = [f"k{n}" for n in range(PER_CHUNK + 1)]
    run = opened(AskLater(), quick=keys)
    for number, key in enumerate(keys):
        run.event(key, number, time_ms=0)
    run.low_ms = 5_000
    barrier.waits = waits
    run.event_timer(1_000)
    assert run.function._shards[0].machine.due == waits


@pytest.mark.parametrize(("woken", "after_ms"), [(True, 1000), (False, 1)])
def test_frequent_polls_only_without_wake_ups(woken: bool, after_ms: int, opened: Any) -> None:
    run = opened(Remember())
    run.function._waker = SimpleNamespace(works=woken, add=lambda *_: None)
    run.event("a", 0)
    # The one that takes a shard up.
    run.wall_timer()
    time_ms, _ = run.state.wall[0]
    assert time_ms - run.clock.wall_ms() == after_ms


def test_events_with_times_of_1970_and_1900_are_counted(opened: Any) -> None:
    run = opened(Remember())
    for number, time_ms in enumerate((None, 1_700_000_000, 1_700_000_000_000, -2_208_988_800_000, -1)):
        run.event("a", number, time_ms)
    assert run.function._counts.suspect_times == 2


@pytest.mark.heavy
def test_full_shard_queue_stays_full_while_other_keys_proceed(opened: Any) -> None:
    run = opened(Remember(), quick=["other"], queue=1000)
    accepted_s: list[float] = []
    number = 0
    while run.clock.monotonic_s() < HOUR_S:
        assert run.event(f"k{number % 8}", number) == []
        accepted_s.append(run.clock.monotonic_s())
        assert [tag.tag_id for tag, _ in run.event("other", number + 1)] == ["dead-letters"]
        number += 2
        assert number < 10_000, "the queue grows without bound"
    assert len(accepted_s) > QUEUES * CAPACITY
    expected = math.log(10) / MAX_SHARE
    assert grown(accepted_s) == pytest.approx([expected, expected], rel=0.05)


@pytest.mark.heavy
def test_many_timers_due_at_once_wait_for_room(opened: Any) -> None:
    keys, asked, most = 1000, 0, 0
    run = opened(AskLater())
    for n in range(keys):
        assert run.event(f"k{n}", n, time_ms=0) == []
    run.low_ms = 5_000
    assert run.event_timer(1_000) == []
    while run.calls.submitted:
        most = max(most, run.calls.submitted)
        asked += run.calls.submitted
        run.calls.submitted = 0
        # Whatever else is awaited, the shard is woken again.
        assert run.wall_timer() == []
    assert asked == keys
    assert most <= CAPACITY + PER_CHUNK


class ToldAtOnce(Program[int]):
    """Makes no call; each event sets a timer that emits the number of events."""

    def initial(self, key: str) -> int:
        return 0

    def on_event(self, state: int, event: Event, now: Moment) -> Step[int]:
        return Step(state + 1, timers={"told": Timer(now.wall_ms + 60_000, "wall")})

    def on_timer(self, state: int, name: str, time_ms: int, now: Moment) -> Step[int]:
        return Step(state, outputs=(Output(state),))


def test_timers_set_after_the_final_watermark_all_fire(opened: Any) -> None:
    """As when one source ends while another is idle, and then continues."""
    run = opened(ToldAtOnce())
    run.low_ms = 2**63 - 1
    assert run.event_timer(END_OF_INPUT_MS) == []
    given = [decode(result).answer for number in range(3 * END_ROUNDS) for result in run.event("a", number)]
    assert given == list(range(1, 3 * END_ROUNDS + 1))


class GoesOn(Remember):
    """Continues without an answer that was given up."""

    def __init__(self, answer: JSON = None) -> None:
        self._answer = answer

    def on_failure(self, state: list[int], tag: str, failure: Failure, now: Moment) -> Step[list[int]]:
        return Step(state, outputs=(Output(self._answer),))


def test_result_of_a_new_event_is_in_the_next_checkpoint(opened: Any) -> None:
    run = opened(GoesOn("calm"), quick="a")
    checkpoints = Checkpoints()
    run.function._commits = commits = CommitTimes(checkpoints, run.clock)
    assert len(run.event("a", 0)) == 1
    run.clock.advance(0.1)
    checkpoints.newest = checkpoints.complete = 1
    run.event_timer(WOKEN_MS)
    assert commits.latency.count == 1


def test_commit_in_a_mail_at_the_end_is_counted_at_once(opened: Any) -> None:
    run = opened(GoesOn("calm"), quick="a")
    checkpoints = Checkpoints()
    run.function._commits = commits = CommitTimes(checkpoints, run.clock)

    def run_mails() -> None:
        run.clock.advance(0.1)
        checkpoints.newest = checkpoints.complete = 1

    run.function._mailbox = SimpleNamespace(run_mails=run_mails)
    run.event("a", 0)
    run.function._run_mails()
    assert commits.latency.count == 1


def summary(revision: int = 0, kind: str = "tumbling", text: str | None = "calm") -> dict[str, Any]:
    return {"type": "summary", "text": text, "revision": revision, "window": {"kind": kind}}


def test_dead_letters_of_the_source_count_by_cause(opened: Any) -> None:
    run = opened(Remember())
    letter = encode(DeadLetter(b"?", "malformed_record", "not JSON"))
    list(run.function.process_element((0, letter), run.context()))
    counts = run.function._counts
    assert (counts.failed, counts.dead_letters) == ({"malformed_record": 1}, 1)


@pytest.mark.parametrize(("program", "letters"), [(Remember(), 3), (GoesOn(), 0)])
def test_failed_calls_count_once_by_cause(opened: Any, program: Any, letters: int) -> None:
    run = opened(program, quick=["a"])
    for number in range(3):
        run.event("a", number)
    counts = run.function._counts
    assert (counts.failed, counts.dead_letters, counts.results) == ({"refused": 3}, letters, 3 - letters)


class AsksAgain(GoesOn):
    def on_failure(self, state: list[int], tag: str, failure: Failure, now: Moment) -> Step[list[int]]:
        return Step(state, Ask((Message("user", "again"),)))


def test_failure_counts_even_if_the_next_call_is_rejected(opened: Any) -> None:
    def within_budget(machines: OpenMachines) -> OpenMachines:
        return BudgetedMachines(machines, 10, lambda item: 10 if item.id == "e0" else 11)

    run = opened(AsksAgain(), quick=["a"], wrapped=within_budget)
    run.event("a", 0)
    assert run.function._counts.failed == {"refused": 1, "budget": MAX_CALLS - 1, "program_failed": 1}


def test_dead_letters_made_before_the_operator_count_by_cause(opened: Any) -> None:
    run = opened(Remember())
    letter = encode(DeadLetter(b"x", "malformed_record", "no JSON"))
    assert list(run.function.process_element((0, letter), run.context())) == [(operator.DEAD_LETTERS, letter)]
    counts = run.function._counts
    assert (counts.dead_letters, counts.failed) == (1, {"malformed_record": 1})


@pytest.mark.parametrize(
    ("settings", "answer", "kind"),
    [
        (Sessions(), {"turn": 3, "text": "hi"}, "turn"),
        (Sessions(), {"ended": "idle", "turns": 3, "summary": ""}, "ended"),
        (SummarySpec(type="summary"), summary(), "summary"),
        (SummarySpec(type="summary"), summary(revision=1), "correction"),
        (SummarySpec(type="summary"), summary(revision=1, kind="rolling"), "summary"),
        (SummarySpec(type="summary"), summary(text=None), "failed_summary"),
    ],
)
def test_findings_count_by_kind(opened: Any, settings: Any, answer: dict[str, Any], kind: str) -> None:
    run = opened(GoesOn(answer), quick=["a"])
    run.function._finding = settings.finding
    run.event("a", 0)
    assert run.function._counts.findings == {kind: 1}
