from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock
from tests.harness.keyed_state import OneKeyContext, PlannedCalls, Room

from forebay.codec import decode
from forebay.connectors.generator import source as generator
from forebay.connectors.generator.posts import EVERYDAY, TOPICS, post
from forebay.connectors.generator.source import (
    START_MS,
    Burst,
    Generator,
    GiveDue,
    PostSchedule,
    generator_source,
)
from forebay.connectors.python_source import WAIT_S
from forebay.errors import SettingError


def test_same_seed_and_index_give_the_same_event() -> None:
    config = Generator(seed=3, bursts=(Burst(1, 1),))
    assert [config.event(i) for i in range(50)] == [config.event(i) for i in range(50)]
    assert config.event(5) != Generator(seed=4, bursts=config.bursts).event(5)


def test_event_has_what_is_needed_to_check_it() -> None:
    event = Generator(rate_per_s=10).event(25)
    assert event.position == "generator@25"
    assert event.time_ms == START_MS + 2500
    assert event.fields["time"] == "2026-01-01T00:00:02.500+00:00"
    assert orjson.loads(event.raw) == event.fields
    assert set(event.fields) == {"id", "user", "text", "gold_topic", "time"}


def test_vocabulary_does_not_change() -> None:
    # Checkpoints and answers of old runs are compared by these: a seed must always mean the same.
    assert post(0, 0, "outage") == {
        "id": "post-0000000",
        "user": "user382",
        "text": "Blackout at the station: lifts stuck, traffic lights dead as of today. :)",
        "gold_topic": "outage",
    }


def test_a_burst_is_about_its_topic() -> None:
    config = Generator(rate_per_s=100, bursts=(Burst(1, 1, factor=4, topic="outage", share=0.8),))
    topics = [config.event(i).fields["gold_topic"] for i in range(600)]
    assert "outage" not in topics[:100] + topics[500:]
    assert topics[100:500].count("outage") / 400 == pytest.approx(0.8, abs=0.08)
    assert set(topics) - {"outage"} == set(EVERYDAY)


def test_every_topic_reads_like_a_post() -> None:
    for topic in TOPICS:
        for index in range(100):
            text = post(1, index, topic)["text"]
            assert 10 < len(text) < 160
            assert "{" not in text
            assert text[0].isupper()


class Run:
    """One run of a paced generator, from a checkpoint."""

    def __init__(
        self, config: Generator, states: dict[str, bytes] | None = None, room: Room | None = None
    ) -> None:
        self.clock = ManualClock(0.0)
        self.context = OneKeyContext(states)
        self._function = GiveDue(config, clock=self.clock, sleep=self.clock.pause)
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(generator, "output_room", lambda _: room or Room())
            self._function.open(self.context)

    def call(self) -> list[tuple[float, str]]:
        """Time and position of each post that a call emitted."""
        posts = self._function.process_element(0, self.context)
        return [(self.clock.monotonic_s(), decode(data).position or "") for data in posts]


def positions(count: int) -> list[str]:
    return [f"generator@{index}" for index in range(count)]


def test_posts_are_emitted_when_due() -> None:
    run, left = Run(Generator(count=5, rate_per_s=10)), []
    while len(left) < 5:
        left += run.call()
    assert [at_s for at_s, _ in left] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert [position for _, position in left] == positions(5)
    assert max(run.clock.slept_s) <= WAIT_S
    assert run.context.gauge == 1


def test_a_delayed_job_continues_and_catches_up_one_second() -> None:
    run = Run(Generator(count=None, rate_per_s=10))
    run.call()
    run.clock.advance(0.5)
    assert len(run.call()) == 5
    run.clock.advance(3600)
    assert len(run.call()) == 10
    again = Run(Generator(count=None, rate_per_s=10), run.context.states)
    left: list[tuple[float, str]] = []
    while not left:
        left = again.call()
    assert left == [(pytest.approx(0.1), "generator@16")]


@pytest.mark.heavy
@given(st.lists(st.booleans(), max_size=30), st.integers(1, 30), st.data())
def test_every_post_is_emitted_once_within_the_planned_calls(
    room: list[bool], count: int, data: st.DataObject
) -> None:
    planned = PlannedCalls()
    config = Generator(count=count, rate_per_s=data.draw(st.sampled_from([3.0, 70.0, 1e6])))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(generator, "calls", planned)
        generator_source(None, config)
    script, left = Room(*room), []
    run = Run(config, room=script)
    for _ in range(planned.count):
        if data.draw(st.integers(0, 20)) == 0:
            run = Run(config, run.context.states, script)
        left += [position for _, position in run.call()]
    assert left == positions(count)


def test_a_constant_rate() -> None:
    assert [PostSchedule(10).due_s(i) for i in range(4)] == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_burst_is_denser_and_the_base_rate_continues() -> None:
    schedule = PostSchedule(2, (Burst(1, 1, factor=3),))
    due = [schedule.due_s(i) for i in range(12)]
    assert due == pytest.approx([0, 0.5, *(1 + i / 6 for i in range(6)), 2, 2.5, 3, 3.5])


def test_active_burst_by_time() -> None:
    burst = Burst(1, 1)
    assert [PostSchedule(1, (burst,)).burst_at(at) for at in (0.9, 1.0, 1.9, 2.0)] == [
        None,
        burst,
        burst,
        None,
    ]


@given(
    st.floats(0.1, 1000),
    st.lists(st.tuples(st.floats(0, 20), st.floats(0.1, 20), st.floats(0.1, 50)), max_size=4),
)
def test_due_times_never_decrease_and_match_the_rates(
    rate: float, gaps: list[tuple[float, float, float]]
) -> None:
    bursts, at_s = [], 0.0
    for gap_s, duration_s, factor in gaps:
        bursts.append(Burst(at_s + gap_s, duration_s, factor))
        at_s += gap_s + duration_s + 1e-6
    schedule = PostSchedule(rate, tuple(bursts))
    due = [schedule.due_s(i) for i in range(300)]
    assert due == sorted(due)
    for before_s, after_s in pairwise(due):
        rates = [
            rate * b.factor for b in bursts if b.start_s < after_s and before_s < b.start_s + b.duration_s
        ]
        fastest, slowest = max([rate, *rates]), min([rate, *rates])
        assert 1 / fastest * (1 - 1e-6) - 1e-9 <= after_s - before_s <= 1 / slowest * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize(
    "make",
    [
        lambda: PostSchedule(0),
        lambda: PostSchedule(float("nan")),
        lambda: Burst(-1, 1),
        lambda: Burst(0, 0),
        lambda: Burst(0, 1, factor=0),
        lambda: Burst(0, 1, share=1.1),
        lambda: PostSchedule(1, (Burst(0, 2), Burst(1, 1))),
    ],
)
def test_invalid_settings(make: object) -> None:
    with pytest.raises(SettingError):
        make()
