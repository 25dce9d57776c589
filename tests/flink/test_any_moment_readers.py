"""Readers under random faults, each with an operator behind it: every record is read and answered once.

As in `test_any_moment`, a schedule drives everything, including the outside world: whether a feed has a next
record, and whether there is room downstream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.flink.any_moment import SCHEDULES, Action, Runs, completion, divided, keying, nobody
from tests.harness.chain import Operator

from forebay.connectors.event_time import EventTime
from forebay.connectors.feeds import source as feed_source
from forebay.connectors.feeds.feed import Feed, Received
from forebay.connectors.feeds.source import Poll, Polled
from forebay.connectors.files import follow, source
from forebay.connectors.files.follow import FollowFolder
from forebay.connectors.files.reader import parts_of
from forebay.connectors.files.source import Files, ReadPieces, ReplayRecords, ReplaySpeed, line_reader
from forebay.connectors.formats import Format
from forebay.connectors.generator import source as generator
from forebay.connectors.generator.source import Generator, GiveDue, calls_of
from forebay.flink.operator import InferenceOperator
from forebay.records import Event, Result
from forebay.stateful.machine import stateless

STEP_BYTES = 200
"""Read size: smaller than some rows."""
KEYS = 3


def answered(
    schedule: Sequence[Action],
    reader: Callable[[Runs], Any],
    elements: Sequence[Any],
    number: Callable[[Event], int],
    has_room: Callable[[], bool] = lambda: True,
) -> list[Result]:
    """Return the results for all records if the answer to each is its text, checked for order per key.
    `reader` makes the function for `elements`.
    """

    def operators(runs: Runs) -> list[Operator]:
        def make() -> InferenceOperator:
            return InferenceOperator(nobody, stateless, capacity=3, ordering="key", clock=runs.clock)

        prepare = keying(runs.clock, key=lambda event: str(number(event) % KEYS))
        return [
            Operator(lambda: reader(runs), lambda _: 0, one_subtask=True),
            Operator(make, lambda element: element[0], prepare),
        ]

    runs = Runs(
        operators,
        [(element, None) for element in elements],
        lambda item: completion(item, "", [number(item.event), item.event.fields["text"]]),
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in (generator, feed_source, follow, source):
            patch.setattr(module, "output_room", lambda _: has_room)
        results, letters = divided(runs.play(schedule))
    assert letters == []
    for key in range(KEYS):
        numbers = [result.answer[0] for result in results if result.key == str(key)]
        assert numbers == sorted(numbers)
    return results


def now_and_then(seed: int) -> Callable[[], bool]:
    """True at about two of three looks."""
    dice = Random(seed)
    return lambda: dice.random() < 2 / 3


@pytest.mark.parametrize("followed", [False, True])
@given(schedule=SCHEDULES, count=st.integers(1, 60), seed=st.integers(0, 99))
def test_csv_rows_are_read_and_answered_once_despite_faults(
    followed: bool, schedule: list[Action], count: int, seed: int
) -> None:
    # Rows of several lines, some of which continue in the next chunk.
    texts = [f"{'some words and a line end' * 4}\n" * (n % 4) + f"of {n}" for n in range(count)]
    rows = "".join(f'{n},"{text}"\n' for n, text in enumerate(texts))
    with TemporaryDirectory() as folder:
        path = Path(folder, "in.csv")
        path.write_text(rows, encoding="utf-8", newline="")
        reader = line_reader(Files(path, Format(kind="csv", columns=("n", "text"))))
        parts = parts_of(path, reader)
        results = answered(
            schedule,
            lambda runs: (
                FollowFolder(Path(folder), reader, 1.0, clock=runs.clock, sleep=runs.clock.advance)
                if followed
                else ReadPieces(parts, reader, STEP_BYTES)
            ),
            range(path.stat().st_size // STEP_BYTES + 1),
            lambda event: int(event.fields["n"]),
            now_and_then(seed),
        )
    assert sorted(result.answer for result in results) == [[n, text] for n, text in enumerate(texts)]


@given(SCHEDULES, st.integers(1, 40), st.integers(1, 60), st.integers(0, 99))
def test_replay_returns_each_record_once_despite_faults(
    schedule: list[Action], count: int, calls: int, seed: int
) -> None:
    dice = Random(seed)
    at, lines = 0, []
    for n in range(count):
        # Now and then time goes back.
        at += dice.choice((0, 0, 40, 900, -300, 20_000))
        lines.append({"n": n, "text": f"of {n}", "at": at})
    with TemporaryDirectory() as folder:
        path = Path(folder, "in.jsonl")
        path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        reader = line_reader(Files(path, Format(time=EventTime("at", "unix_ms"))))
        parts, pace = parts_of(path, reader), ReplaySpeed(speed=10.0, longest_gap_s=0.5)
        results = answered(
            schedule,
            lambda runs: ReplayRecords(parts, reader, pace, clock=runs.clock, sleep=runs.clock.advance),
            range(calls),
            lambda event: event.fields["n"],
            now_and_then(seed),
        )
    assert sorted(result.answer for result in results) == [[n, f"of {n}"] for n in range(count)]


@given(SCHEDULES, st.integers(1, 60), st.integers(0, 99))
def test_generator_returns_each_post_once_despite_faults(
    schedule: list[Action], count: int, seed: int
) -> None:
    config = Generator(count, rate_per_s=40.0, seed=seed)
    calls = calls_of(config)
    assert calls is not None
    results = answered(
        schedule,
        lambda runs: GiveDue(config, clock=runs.clock, sleep=runs.clock.advance),
        range(calls),
        lambda event: int((event.position or "").removeprefix("generator@")),
        now_and_then(seed),
    )
    assert sorted(result.answer for result in results) == [
        [n, config.event(n).fields["text"]] for n in range(count)
    ]


@dataclass
class Numbers:
    """A feed of the numbers below `end`, each its own cursor."""

    end: int
    name: str = "numbers"


class Given:
    """Replaces the reader's thread: `has_come` decides whether the next record has arrived."""

    def __init__(self, feed: Any, cursor: str | None, has_come: Callable[[], bool]) -> None:
        self._end = feed.end
        self._next = 0 if cursor is None else int(cursor) + 1
        self._has_come = has_come
        self.exhausted = False

    def take(self, wait_s: float) -> Received | None:
        if not self._has_come():
            return None
        if self._next == self._end:
            self.exhausted = True
            return None
        n, self._next = self._next, self._next + 1
        return Received(str(n), orjson.dumps({"n": n, "text": f"of {n}"}), f"numbers@{n}")

    def close(self) -> None:
        pass


@given(SCHEDULES, st.integers(1, 40), st.integers(-5, 5), st.integers(1, 60), st.integers(0, 99))
def test_feed_is_read_once_up_to_its_limit_despite_faults(
    schedule: list[Action], count: int, more: int, calls: int, seed: int
) -> None:
    limit = max(1, count + more)
    feed: Feed = Numbers(count)  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            feed_source, "FeedReader", lambda feed, cursor, room: Given(feed, cursor, now_and_then(seed))
        )
        results = answered(
            schedule,
            lambda runs: Poll(Polled(feed, limit=limit), clock=runs.clock, sleep=runs.clock.advance),
            range(calls),
            lambda event: event.fields["n"],
            now_and_then(seed + 1),
        )
    assert sorted(result.answer for result in results) == [[n, f"of {n}"] for n in range(min(count, limit))]
