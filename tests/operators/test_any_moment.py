"""Operators under random faults: checkpoints, crashes, other parallelisms and set clocks at any moment.

The functions are the real ones; what drives them stands in for Flink (`forebay.testing.chain`), so thousands
of runs take seconds. Whatever happens, what all runs together committed must be what one run in peace gives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.applications.sessions import Sessions
from forebay.bench.chatter import chatter, expected_summaries
from forebay.bench.conversations import MAX_TOKENS, expected_answers, messages
from forebay.bench.happenings import TopicsJob
from forebay.bench.subjects import RECOVERY_SUMMARIES
from forebay.codec import decode, encode
from forebay.connectors.files import ReadPieces
from forebay.connectors.formats import Format
from forebay.connectors.pieces import parts_of
from forebay.connectors.rows import LineReader
from forebay.detect.topic_stages import TopicStage, shard_event_of, text_bytes
from forebay.embed.base import NoEmbedding
from forebay.operators import inference, stages
from forebay.operators.answering import result as result_of
from forebay.operators.inference import InferenceFunction
from forebay.operators.keying import Keying
from forebay.operators.shards import flink_keys
from forebay.operators.stages import StageFunction, message, message_key, payload
from forebay.operators.stateful import StatefulFunction
from forebay.records import Completion, DeadLetter, Event, KeyedEvent, Request, Result, Timing, Usage
from forebay.stateful.program import Program
from forebay.testing.answers import answer_to, echo, request_text, tokens
from forebay.testing.chain import Chain, Operator
from forebay.testing.chosen_calls import ChosenCalls
from forebay.testing.keyed_state import WallClock, held_keys, set_after_round
from forebay.testing.stateful import Remember

Action = tuple[str, int]
ACTIONS = st.one_of(
    st.tuples(st.just("read"), st.integers(1, 6)),
    st.tuples(st.just("take"), st.integers(0, 7)),
    st.tuples(st.just("take"), st.integers(0, 7)),
    st.tuples(st.just("answer"), st.integers(0, 7)),
    st.tuples(st.just("answer"), st.integers(0, 7)),
    st.tuples(st.just("pass time"), st.sampled_from((1, 7, 30, 600, 5_000))),
    st.tuples(st.just("barrier"), st.just(0)),
    st.tuples(st.just("checkpoint"), st.just(0)),
    st.tuples(st.just("crash"), st.integers(1, 3)),
    st.tuples(st.just("set clock"), st.sampled_from((-7_200_000, -1_000, 1_000, 7_200_000))),
)
SCHEDULES = st.integers(0, 120).flatmap(lambda size: st.lists(ACTIONS, min_size=size, max_size=size))
"""Lists of every length as often: by themselves they would have five actions on average."""
SHARDS = 3
STEP_BYTES = 200
"""What a reader reads at a time: less than some rows have."""
FEWER = settings(max_examples=settings.default.max_examples // 4)
"""For applications that take long themselves."""


@pytest.fixture(autouse=True)
def _outside_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "is_cancelled", lambda: False)
    for module in (inference, stages):
        monkeypatch.setattr(module, "held_keys", held_keys)
    monkeypatch.setattr(inference, "set_after_round", set_after_round)
    # So that snapshots are taken within a run of some dozens of inputs.
    monkeypatch.setattr(stages, "LEAST_LOG_BYTES", 256)


@dataclass
class Runs:
    """Runs of one chain, one after another, as a schedule says."""

    operators: Callable[[Runs], Sequence[Operator]]
    elements: Sequence[tuple[Any, int | None]]
    clock: WallClock = field(default_factory=WallClock)
    calls: list[ChosenCalls] = field(default_factory=list)

    def play(self, schedule: Sequence[Action]) -> tuple[Any, ...]:
        """All outputs that were committed, where the last run comes to its end."""
        chain = self._start(1, None)
        for action, number in schedule:
            match action:
                case "read":
                    for _ in range(number):
                        chain.read()
                case "take":
                    for _ in range(3):
                        if ready := chain.ready():
                            chain.take(*ready[number % len(ready)])
                case "answer" if self.calls:
                    self.calls[number % len(self.calls)].answer(number)
                case "pass time":
                    chain.pass_time(number / 1000)
                case "barrier":
                    chain.begin_checkpoint()
                case "checkpoint":
                    chain.checkpoint_at_once()
                case "set clock":
                    self.clock.step(number)
                case "crash":
                    chain = self._start(number, chain.newest)
        chain.finish()
        return chain.outputs

    def _start(self, parallelism: int, restored: Any) -> Chain:
        self.calls = []
        return Chain(
            self.operators(self),
            self.elements,
            self.clock,
            parallelism=parallelism,
            restored=restored,
            while_firing=lambda: [calls.answer(0) for calls in self.calls],
        )

    def opening(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[KeyedEvent], Any]) -> None:
        """From now on, calls of operators that are opened are answered by `answer`."""

        def made(*given: Any, **more: Any) -> ChosenCalls:
            self.calls.append(ChosenCalls(*given, answer_to=answer, clock=self.clock, **more))
            return self.calls[-1]

        monkeypatch.setattr(inference, "ContinuousCalls", made)


async def nobody(_counts: Any) -> Any:
    """Opens nothing: calls are answered by hand."""


def keying(clock: WallClock, **settings: Any) -> Callable[[Any], Iterator[tuple[int, bytes]]]:
    function = Keying(shards=SHARDS, clock=clock, **settings)
    function.open(None)  # type: ignore[arg-type]
    return function.flat_map


def completion(item: KeyedEvent, text: str, answer: Any) -> Result:
    said = Completion(text, "stop", Usage(0, tokens(text)), Timing(0.0, 0.0))
    return result_of(item, said, answer, attempts=1)


def divided(outputs: Sequence[Any]) -> tuple[list[Result], list[DeadLetter]]:
    results = [decode(each) for each in outputs if not isinstance(each, tuple)]
    return results, [decode(data) for tag, data in (each for each in outputs if isinstance(each, tuple))]


# One question per event


@given(SCHEDULES, st.integers(1, 40), st.sampled_from(("unordered", "key")), st.sampled_from((1, 3, 8)))
def test_each_event_is_answered_once_whatever_happens(
    schedule: list[Action], count: int, ordering: Any, capacity: int
) -> None:
    def answer(item: KeyedEvent) -> Any:
        number = item.event.fields["n"]
        if number % 7 == 6:
            return DeadLetter(item.event.raw, "refused", "by the engine", 1, item.id, item.key)
        return completion(item, "", echo(str(number)))

    def operators(runs: Runs) -> list[Operator]:
        def make() -> InferenceFunction:
            return InferenceFunction(nobody, capacity=capacity, ordering=ordering, clock=runs.clock)

        prepare = keying(runs.clock, key=lambda event: event.fields["key"])
        return [Operator(make, lambda element: element[0], prepare)]

    events = [
        (encode(Event(b"%d" % n, {"n": n, "key": f"k{n % 4}"}, position=f"in@{n}")), None)
        for n in range(count)
    ]
    runs = Runs(operators, events)
    with pytest.MonkeyPatch.context() as patch:
        runs.opening(patch, answer)
        results, letters = divided(runs.play(schedule))
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
    """What the scripted replica says to a program's call."""
    ask = item.ask  # type: ignore[attr-defined]
    most = MAX_TOKENS if ask.sampling is None else ask.sampling.max_tokens
    said, _ = answer_to(request_text(Request("", "", ask.messages)), ask.schema, max_tokens=most)
    prompt_tokens = tokens(request_text(Request("", "", ask.messages)))
    value = said if ask.schema is None else orjson.loads(said)
    return replace(completion(item, said, value), usage=Usage(prompt_tokens, tokens(said)))


def stateful(program: Program[Any], capacity: int, key: str, *, event_time: bool = False) -> Any:
    def operators(runs: Runs) -> list[Operator]:
        def make() -> StatefulFunction:
            return StatefulFunction(
                nobody, program, capacity=capacity, queue=4, clock=runs.clock, event_time=event_time
            )

        prepare = keying(
            runs.clock, key=lambda event: event.fields[key], id=lambda event: f"e{event.fields['n']}"
        )
        return [Operator(make, lambda element: element[0], prepare)]

    return operators


def played(runs: Runs, schedule: Sequence[Action]) -> tuple[list[Result], list[DeadLetter]]:
    with pytest.MonkeyPatch.context() as patch:
        runs.opening(patch, asked)
        return divided(runs.play(schedule))


@given(SCHEDULES, st.integers(1, 40), st.sampled_from((1, 3, 8)), st.sampled_from((1, 5)))
def test_sessions_remember_every_turn_whatever_happens(
    schedule: list[Action], count: int, capacity: int, sessions: int
) -> None:
    settings = Sessions(budget_tokens=512, idle_s=None)
    said = list(messages(count, sessions, 7, words=12))
    events = [(encode(Event(b"%d" % each["n"], each, position=f"in@{each['n']}")), None) for each in said]
    program = settings.program(event_time=False)
    results, letters = played(Runs(stateful(program, capacity, "user"), events), schedule)
    assert letters == []
    assert [result.fields["n"] for result in sorted(results, key=lambda r: r.fields["n"])] == list(
        range(count)
    )
    expected = expected_answers(said, settings)
    assert all(result.answer == expected[result.fields["n"]] for result in results)
    of_key = defaultdict(list)
    for result in results:
        of_key[result.key].append(result.fields["n"])
    assert all(numbers == sorted(numbers) for numbers in of_key.values())


@given(SCHEDULES, st.integers(1, 60), st.sampled_from((1, 3, 8)))
def test_event_time_timers_fire_once_and_at_their_place_whatever_happens(
    schedule: list[Action], count: int, capacity: int
) -> None:
    program = Remember(idle_ms=25)
    said = [{"n": n, "key": f"k{n * n % 5}", "at": 10 * n} for n in range(count)]
    events = [
        (encode(Event(b"%d" % each["n"], each, each["at"], position=f"in@{each['n']}")), each["at"] - 1)
        for each in said
    ]
    results, letters = played(Runs(stateful(program, capacity, "key"), events), schedule)
    assert letters == []
    # Of each key, sessions that an idle time ends: with slow answers later ones join, so only what is in them
    # is certain: each number once, in order, and each said before it is ended.
    ended = [result for result in results if "ended" in result.answer]
    numbers = {
        key: [n for r in ended if r.key == key for n in r.answer["ended"]] for key in {r.key for r in ended}
    }
    for key, of in numbers.items():
        assert of == [each["n"] for each in said if each["key"] == key]
    assert sum(map(len, numbers.values())) == count
    assert len(results) - len(ended) == count


@FEWER
@given(SCHEDULES, st.integers(45, 130))
def test_summaries_are_those_of_a_run_in_peace_whatever_happens(schedule: list[Action], count: int) -> None:
    said = list(chatter(count, 3, size_s=RECOVERY_SUMMARIES.size_s))
    program = RECOVERY_SUMMARIES.program(event_time=True)
    events = [
        (encode(Event(b"%d" % each["n"], each, each["at"], position=f"in@{each['n']}")), each["at"] - 1)
        for each in said
    ]
    results, letters = played(Runs(stateful(program, 16, "channel"), events), schedule)
    assert letters == []
    expected = expected_summaries(said, RECOVERY_SUMMARIES)
    found = [(result.answer["key"], result.answer["window"]["start_ms"]) for result in results]
    assert sorted(found) == sorted(expected)
    for place, result in zip(found, results, strict=True):
        assert result.answer == expected[place]


# Stages, whose state is a snapshot and the inputs since


@FEWER
@given(SCHEDULES, st.integers(1, 80))
def test_topics_are_those_of_a_run_in_peace_whatever_happens(schedule: list[Action], count: int) -> None:
    job = TopicsJob()
    said = job.events(count, 5)
    (key,) = flink_keys(1)

    def operators(runs: Runs) -> list[Operator]:
        def make() -> StageFunction:
            return StageFunction(
                lambda shard: TopicStage(job.settings.find, shard, NoEmbedding().embed, NoEmbedding.width),
                shards=1,
                next_shards=1,
                wait_ms=500,
                most_log_bytes=1 << 10,
            )

        return [Operator(make, message_key)]

    texts = [(message(key, text_bytes(each["at"], each["text"])), None) for each in said]
    found = [shard_event_of(payload(output)) for output in Runs(operators, texts).play(schedule)]
    # When a batch is full depends on the clock; which texts are placed where does not.
    stage = TopicStage(job.settings.find, 0, NoEmbedding().embed, NoEmbedding.width)
    outputs = [each for data, _ in texts for each in stage.take(payload(data))]
    assert found == [shard_event_of(data) for _, data in (*outputs, *stage.finish())]


# Readers, and an operator behind one


@given(SCHEDULES, st.integers(1, 60))
def test_rows_of_csv_are_read_once_and_answered_once_whatever_happens(
    schedule: list[Action], count: int
) -> None:
    # Rows of several lines, some of which go on in the next piece that is read.
    texts = [f"{'some words and a line end' * 4}\n" * (n % 4) + f"of {n}" for n in range(count)]
    rows = "".join(f'{n},"{text}"\n' for n, text in enumerate(texts))
    with TemporaryDirectory() as folder:
        path = Path(folder, "in.csv")
        path.write_text(rows, encoding="utf-8", newline="")
        reader = LineReader(name="in.csv", format=Format(kind="csv", columns=("n", "text")))
        parts = parts_of(path, reader)

        def operators(runs: Runs) -> list[Operator]:
            prepare = keying(runs.clock, key=lambda event: str(int(event.fields["n"]) % 3))

            def make() -> InferenceFunction:
                return InferenceFunction(nobody, capacity=3, ordering="key", clock=runs.clock)

            return [
                Operator(lambda: ReadPieces(parts, reader, STEP_BYTES), lambda _: 0, one_subtask=True),
                Operator(make, lambda element: element[0], prepare),
            ]

        runs = Runs(operators, [(n, None) for n in range(path.stat().st_size // STEP_BYTES + 1)])
        with pytest.MonkeyPatch.context() as patch:
            runs.opening(patch, lambda item: completion(item, "", item.event.fields["text"]))
            results, letters = divided(runs.play(schedule))
    assert letters == []
    assert sorted(int(result.fields["n"]) for result in results) == list(range(count))
    for result in results:
        assert result.answer == texts[int(result.fields["n"])]
    for key in "012":
        numbers = [int(result.fields["n"]) for result in results if result.key == key]
        assert numbers == sorted(numbers)
