"""Operators under random faults: checkpoints, crashes, rescaling and clock changes at any moment.

The functions are real; `tests.harness.chain` replaces Flink, so thousands of runs take seconds. The committed
results of all runs together must equal those of a run without faults.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import orjson
from benchmarks.conversations import MAX_TOKENS, chatter, expected_answers, expected_summaries, messages
from benchmarks.expected_events import TopicsJob, TrendsJob
from benchmarks.workloads import RECOVERY_SUMMARIES
from hypothesis import example, given
from hypothesis import strategies as st
from tests.flink.any_moment import FEWER, SCHEDULES, SHARDS, Action, Runs, completion, divided, keying, nobody
from tests.harness.chain import Operator
from tests.harness.programs import Remember

from benchmarks import expected_events
from forebay.apps.sessions import Sessions
from forebay.apps.topics.embedding import NoEmbedding
from forebay.apps.topics.finder import FOUND, TopicStage, assignments_of, shard_event_of, text_bytes
from forebay.apps.trends.settings import Trends, to_result
from forebay.apps.trends.stages import BookStage, CountStage, RateStage, event_of, post_bytes
from forebay.apps.trends.values import TrendSettings
from forebay.codec import decode, encode
from forebay.flink.event_time import StreamClock
from forebay.flink.infer import QUEUES
from forebay.flink.operator import InferenceOperator
from forebay.flink.shards import flink_keys
from forebay.flink.stages import Stage, StageFunction, message, message_key, payload
from forebay.records import DeadLetter, Event, KeyedEvent, Request, Result, Usage
from forebay.stateful.key_states import StateLimits
from forebay.stateful.machine import stateless
from forebay.stateful.program import Program
from forebay.stateful.shard_executor import ProgramMachines
from forebay.stateful.stream_time import StreamTime, Tolerance
from forebay.testing.answers import answer_to, echo, request_text, tokens

# One question per event


@given(SCHEDULES, st.integers(1, 40), st.sampled_from(("unordered", "key")), st.sampled_from((1, 3, 8)))
def test_each_event_is_answered_once_despite_faults(
    schedule: list[Action], count: int, ordering: Any, capacity: int
) -> None:
    def answer(item: KeyedEvent) -> Any:
        number = item.event.fields["n"]
        if number % 7 == 6:
            return DeadLetter(item.event.raw, "refused", "by the engine", 1, item.id, item.key)
        return completion(item, "", echo(str(number)))

    def operators(runs: Runs) -> list[Operator]:
        def make() -> InferenceOperator:
            return InferenceOperator(
                nobody, stateless, capacity=capacity, ordering=ordering, clock=runs.clock
            )

        prepare = keying(runs.clock, key=lambda event: event.fields["key"])
        return [Operator(make, lambda element: element[0], prepare)]

    events = [
        (encode(Event(b"%d" % n, {"n": n, "key": f"k{n % 4}"}, position=f"in@{n}")), None)
        for n in range(count)
    ]
    results, letters = divided(Runs(operators, events, answer).play(schedule))
    assert sorted(result.fields["n"] for result in results) == [n for n in range(count) if n % 7 != 6]
    assert sorted(int(letter.raw) for letter in letters) == [n for n in range(count) if n % 7 == 6]
    assert all(result.answer == echo(str(result.fields["n"])) for result in results)
    if ordering == "key":
        of_key = defaultdict(list)
        for result in results:
            of_key[result.key].append(result.fields["n"])
        assert all(numbers == sorted(numbers) for numbers in of_key.values())


# A program with state: each answer depends on all that came before under its key


def asked(item: KeyedEvent, text: str | None = None) -> Result:
    ask = item.ask  # type: ignore[attr-defined]
    most = MAX_TOKENS if ask.sampling is None else ask.sampling.max_tokens
    output, _ = answer_to(request_text(Request("", "", ask.messages)), ask.schema, max_tokens=most)
    prompt_tokens = tokens(request_text(Request("", "", ask.messages)))
    value = output if ask.schema is None else orjson.loads(output)
    return replace(completion(item, output, value), usage=Usage(prompt_tokens, tokens(output)))


def stateful(program: Program[Any], capacity: int, key: str, *, event_time: bool = False) -> Any:
    def operators(runs: Runs) -> list[Operator]:
        def make() -> InferenceOperator:
            limits = StateLimits(queue=4, shard_queue=QUEUES * capacity)
            machines = ProgramMachines(program, limits)
            return InferenceOperator(
                nobody, machines, capacity=capacity, clock=runs.clock, event_time=event_time
            )

        prepare = keying(
            runs.clock, key=lambda event: event.fields[key], id=lambda event: f"e{event.fields['n']}"
        )
        return [Operator(make, lambda element: element[0], prepare)]

    return operators


@given(SCHEDULES, st.integers(1, 40), st.sampled_from((1, 3, 8)), st.sampled_from((1, 5)))
def test_sessions_keep_every_turn_despite_faults(
    schedule: list[Action], count: int, capacity: int, sessions: int
) -> None:
    settings = Sessions(budget_tokens=512, idle_s=None)
    text = list(messages(count, sessions, 7, words=12))
    events = [(encode(Event(b"%d" % each["n"], each, position=f"in@{each['n']}")), None) for each in text]
    program = settings.program(event_time=False)
    results, letters = divided(Runs(stateful(program, capacity, "user"), events, asked).play(schedule))
    assert letters == []
    assert [result.fields["n"] for result in sorted(results, key=lambda r: r.fields["n"])] == list(
        range(count)
    )
    expected = expected_answers(text, settings)
    assert all(result.answer == expected[result.fields["n"]] for result in results)
    of_key = defaultdict(list)
    for result in results:
        of_key[result.key].append(result.fields["n"])
    assert all(numbers == sorted(numbers) for numbers in of_key.values())


@given(SCHEDULES, st.integers(1, 60), st.sampled_from((1, 3, 8)))
def test_event_time_timers_fire_once_in_order_despite_faults(
    schedule: list[Action], count: int, capacity: int
) -> None:
    program = Remember(idle_ms=25)
    text = [{"n": n, "key": f"k{n * n % 5}", "at": 10 * n} for n in range(count)]
    events = [
        (encode(Event(b"%d" % each["n"], each, each["at"], position=f"in@{each['n']}")), each["at"] - 1)
        for each in text
    ]
    results, letters = divided(Runs(stateful(program, capacity, "key"), events, asked).play(schedule))
    assert letters == []
    # Of each key, sessions that an idle time ends: with slow answers later ones join, so only what is in them
    # is certain: each number once, in order, and each emitted before its session ends.
    ended = [result for result in results if "ended" in result.answer]
    numbers = {
        key: [n for r in ended if r.key == key for n in r.answer["ended"]] for key in {r.key for r in ended}
    }
    for key, of in numbers.items():
        assert of == [each["n"] for each in text if each["key"] == key]
    assert sum(map(len, numbers.values())) == count
    assert len(results) - len(ended) == count


@FEWER
@given(SCHEDULES, st.integers(45, 130))
def test_summaries_are_unaffected_by_faults(schedule: list[Action], count: int) -> None:
    text = list(chatter(count, 3, size_s=RECOVERY_SUMMARIES.size_s))
    program = RECOVERY_SUMMARIES.program(event_time=True)
    events = [
        (encode(Event(b"%d" % each["n"], each, each["at"], position=f"in@{each['n']}")), each["at"] - 1)
        for each in text
    ]
    results, letters = divided(Runs(stateful(program, 16, "channel"), events, asked).play(schedule))
    assert letters == []
    expected = expected_summaries(text, RECOVERY_SUMMARIES)
    found = [(result.answer["key"], result.answer["window"]["start_ms"]) for result in results]
    assert sorted(found) == sorted(expected)
    for place, result in zip(found, results, strict=True):
        assert result.answer == expected[place]


# Stages, whose state is a snapshot and the inputs since


@FEWER
@given(SCHEDULES, st.integers(1, 80))
def test_topics_are_unaffected_by_faults(schedule: list[Action], count: int) -> None:
    job = TopicsJob()
    text = job.events(count, 5)
    (key,) = flink_keys(1)

    def operators(runs: Runs) -> list[Operator]:
        def make() -> StageFunction:
            return StageFunction(
                lambda _, shard: TopicStage(job.settings.find, shard, NoEmbedding().embed, NoEmbedding.width),
                shards=1,
                next_shards=2,
                wait_ms=500,
                most_log_bytes=1 << 10,
            )

        return [Operator(make, message_key)]

    def of_text(each: dict[str, Any]) -> bytes:
        return text_bytes(each["at"], each["text"], id=str(each["n"]))

    def read(outputs: Iterable[tuple[bool, bytes]]) -> tuple[list[Any], list[Any]]:
        both = [*outputs]
        texts = [(each.id, each.topic) for event, data in both if not event for each in assignments_of(data)]
        return [shard_event_of(data) for event, data in both if event], texts

    texts = [(message(key, of_text(each)), None) for each in text]
    event_key = flink_keys(2)[FOUND]
    played = Runs(operators, texts).play(schedule)
    found = read((message_key(output) == event_key, payload(output)) for output in played)
    # When a batch is full depends on the clock; which texts are placed where does not.
    stage = TopicStage(job.settings.find, 0, NoEmbedding().embed, NoEmbedding.width)
    outputs = [each for data, _ in texts for each in stage.take(payload(data))]
    assert found == read((kind == FOUND, data) for kind, data in (*outputs, *stage.finish()))


TRENDS = TrendsJob(
    Trends(
        late_s=2.0,
        ahead_s=600.0,
        find=TrendSettings(
            tick_s=1.0,
            windows_s=(2.0, 8.0),
            history_s=60.0,
            least_nats=3.0,
            least_posts=2.0,
            end_s=4.0,
            width_bits=8,
            max_warm=256,
            changed_s=2.0,
        ),
    )
)
"""Trends appear and disappear within a few dozen posts."""


def posts(count: int) -> list[dict[str, Any]]:
    """Four a second; a new word bursts every ten seconds. Some posts are slightly late, some far off."""
    dice = Random(3)
    found = []
    for n in range(count):
        text = " ".join(dice.choices([f"word{index}" for index in range(40)], k=3))
        news = f"news{n // 40} about{n // 40} " if n % 40 >= 25 else ""
        off_ms = {3: -5_000, 7: -4_500, 11: -60_000, 17: 3_600_000}.get(n % 20, 0)
        found.append({"n": n, "at": n * 250 + off_ms, "text": news + text})
    return found


@FEWER
@example([("read", 6), ("take", 0), ("checkpoint", 0), ("crash", 2)] * 20, 120)
@given(SCHEDULES, st.integers(1, 120))
def test_trends_are_unaffected_by_faults(schedule: list[Action], count: int) -> None:
    text, settings, find = posts(count), TRENDS.settings, TRENDS.settings.find
    tolerance = settings.tolerance
    shards = expected_events.SHARDS

    def post(event: Event) -> bytes:
        assert event.time_ms is not None
        return post_bytes(event.time_ms, event.fields["text"])

    def operators(runs: Runs) -> list[Operator]:
        def stage(make: Callable[[Any, int], Stage], shards: int, next_shards: int) -> Operator:
            return Operator(lambda: StageFunction(make, shards=shards, next_shards=next_shards), message_key)

        def clock() -> StreamClock:
            return StreamClock(post, tolerance=tolerance, shards=shards, clock=runs.clock)

        return [
            Operator(clock, lambda _: flink_keys(1)[0], one_subtask=True, late_ms=0),
            stage(lambda _, shard: CountStage(find, shard, shards), shards, shards),
            stage(lambda _, shard: RateStage(find, shards), shards, 1),
            stage(lambda _, shard: BookStage(find), 1, 1),
        ]

    events = [
        (encode(Event(b"%d" % each["n"], each, each["at"], position=f"in@{each['n']}")), None)
        for each in text
    ]
    outputs = Runs(operators, events).play(schedule)
    found = [to_result(event_of(payload(each))) for each in outputs if not isinstance(each, tuple)]
    expected = TRENDS.answers_by_id(text, lambda n: f"in@{n}")
    asked = {f"{result.id}-why" for result in found}
    assert [result.id for result in found] == [name for name in expected if name not in asked]
    for result in found:
        assert orjson.loads(orjson.dumps(result.answer)) == expected[result.id]
    refused = [int(decode(data).raw) for _, data in (each for each in outputs if isinstance(each, tuple))]
    time = StreamTime(tolerance)
    judged = [each for post in text for each in time.see(post["at"], b"%d" % post["n"])]
    assert refused == [int(each.data) for each in (*judged, *time.end()) if each.verdict != "in time"]


@given(SCHEDULES, st.integers(1, 80), st.integers(0, 99))
def test_partition_clock_judges_each_event_once_despite_faults(
    schedule: list[Action], count: int, seed: int
) -> None:
    dice = Random(seed)
    events = []
    for n in range(count):
        partition = dice.randrange(3)
        # One partition is ahead, one far ahead; now and then an event is far from its own.
        at = n * 100 + (0, 1_000, 90_000)[partition] + dice.choice((0,) * 9 + (3_600_000,))
        events.append((encode(Event(b"%d" % n, {}, at, position=f"in/{partition}@{n}")), None))

    def operators(runs: Runs) -> list[Operator]:
        def clock() -> StreamClock:
            tolerance = Tolerance(late_ms=500, ahead_ms=60_000, idle_ms=20)
            return StreamClock(lambda event: event.raw, tolerance=tolerance, shards=SHARDS, clock=runs.clock)

        return [Operator(clock, lambda _: flink_keys(1)[0], one_subtask=True, late_ms=0)]

    outputs = Runs(operators, events).play(schedule)
    went_on = [int(payload(each)) for each in outputs if not isinstance(each, tuple)]
    refused = [int(decode(data).raw) for _, data in (each for each in outputs if isinstance(each, tuple))]
    assert sorted(went_on + refused) == list(range(count))
