from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import FORMAT
from forebay.fleet.autoscale.base import (
    Decision,
    ReplicaSpeed,
    Scaler,
    ScalingLimits,
    ServiceClass,
    Signals,
    Timings,
    Tokens,
)
from forebay.fleet.autoscale.deadline import LONGEST_BOOT, DeadlinePolicy
from forebay.fleet.autoscale.forecast import DAY_S, NAMES, SLOT_S, Season
from forebay.fleet.autoscale.learned import MAX_PART_BYTES, ClassMix, LearnedSpeed, ScalingMemory, saved_ms
from forebay.fleet.autoscale.meter import AnswerLengths
from forebay.fleet.autoscale.settings import ScalingSettings, holds_for, memory_of

SPEED = ReplicaSpeed(1e-3, 0.0, requests=10)
"""A token is a millisecond of work."""
OF: dict[str, str | float] = {"model": "m"}
MIDNIGHT_S = 19_700 * DAY_S
STEP_S = 5.0


def work(seconds: float) -> tuple[tuple[str, Tokens], ...]:
    return (("default", Tokens(seconds, seconds * 1000)),)


def saved(memory: ScalingMemory, at_ms: int = 1) -> bytes:
    data = memory.save(at_ms)
    assert data is not None
    return data


def slots(season: Season, rates: list[int], at_s: float) -> float:
    """Each rate for a slot; returns when they are over."""
    for rate in rates:
        season.add(at_s, at_s + SLOT_S, rate * SLOT_S)
        at_s += SLOT_S
    return at_s


RATES = st.lists(st.integers(0, 50), max_size=900)


@given(RATES, st.integers(0, 50), st.integers(0, 5000), RATES, st.lists(st.integers(0, 10_000), min_size=1))
def test_recalled_season_continues_as_if_never_stopped(
    before: list[int], half: int, gap: int, after: list[int], asked: list[int]
) -> None:
    policies = DeadlinePolicy(SPEED), DeadlinePolicy(SPEED)
    stayed, restarted = (policy._streams["default"].forecast.season for policy in policies)
    now_s = slots(stayed, before, MIDNIGHT_S)
    # The last slot has not ended.
    stayed.add(now_s, now_s + SLOT_S / 2 + 1, half * (SLOT_S / 2 + 1))
    assert ScalingMemory(OF, {"p": policies[1]}).recall(saved(ScalingMemory(OF, {"p": policies[0]}))) == []
    # The stream is silent for a while; then both receive the same.
    for season in (stayed, restarted):
        slots(season, after, now_s + (gap + 1) * SLOT_S)
    for slot in asked:
        at_s = MIDNIGHT_S + slot * 150.0
        assert restarted.rate(at_s) == pytest.approx(stayed.rate(at_s), rel=1e-3)


AHEAD_S = MIDNIGHT_S - 3 * DAY_S - 40_000.0
"""By how much the wall clock is ahead of the monotonic one of the first machine."""
BUSY_S = 9 * 3600.0


def rate(at_s: float) -> float:
    """One replica is busy, except for four hours with a peak of 25 in the middle."""
    return 1 + 24 * max(0, 1 - abs(at_s % DAY_S - BUSY_S) / 7200)


def drive(policy: DeadlinePolicy, since_s: float, until_s: float, ahead_s: float) -> list[int]:
    """The decision of each quarter of an hour; the wall clock is ahead, and all wanted replicas are ready."""
    wanted, found = 1, []
    for at_s in itertools.takewhile(lambda at_s: at_s < until_s, itertools.count(since_s, STEP_S)):
        came = work(rate(at_s) * STEP_S)
        wanted = policy.decide(Signals(at_s - ahead_s, ready=wanted, arrived=came, wall_s=at_s)).wanted
        if at_s % 900 == 0:
            found.append(wanted)
    return found


def known_days(policy: DeadlinePolicy) -> None:
    begin_s = MIDNIGHT_S - 3 * DAY_S
    policy.decide(Signals(begin_s - AHEAD_S, wall_s=begin_s))
    for minute in range(3 * 1440):
        at_s = begin_s + minute * 60.0
        policy.learn(at_s - AHEAD_S, at_s - AHEAD_S + 60, work(60 * rate(at_s)))


@pytest.mark.heavy
def test_policy_restarted_daily_decides_as_if_never_stopped() -> None:
    setting = (SPEED, (ServiceClass(slo_s=10.0),), Timings(boot_s=900))
    stayed, restarted, anew = DeadlinePolicy(*setting), DeadlinePolicy(*setting), DeadlinePolicy(*setting)
    known_days(stayed)
    # A rush goes by from decision to decision, so that it shows which forecast is the best one.
    drive(stayed, MIDNIGHT_S + 6 * 3600, MIDNIGHT_S + 11 * 3600, AHEAD_S)
    assert ScalingMemory(OF, {"p": restarted}).recall(saved(ScalingMemory(OF, {"p": stayed}))) == []
    best = [NAMES[policy._streams["default"].forecast.best] for policy in (stayed, restarted, anew)]
    assert best == ["days", "days", "level"]
    # Hours without signals; then another machine as well, whose monotonic clock starts with it.
    begin_s = MIDNIGHT_S + DAY_S + 6 * 3600
    end_s = begin_s + 5 * 3600
    found = drive(restarted, begin_s, end_s, begin_s)
    assert found[6:] == pytest.approx(drive(stayed, begin_s, end_s, AHEAD_S)[6:], abs=1)
    # At a quarter past seven, and for an hour from then on, the rush is foreseen by that alone.
    new = drive(anew, begin_s, end_s, begin_s)
    assert all(one >= other + 4 for one, other in zip(found[5:10], new[5:10], strict=True))


def test_nothing_is_learned_from_a_stop() -> None:
    stayed, restarted, unbroken = DeadlinePolicy(SPEED), DeadlinePolicy(SPEED), DeadlinePolicy(SPEED)
    for policy in (stayed, unbroken):
        known_days(policy)
    drive(stayed, MIDNIGHT_S, MIDNIGHT_S + 600, AHEAD_S)
    restarted.recall(orjson.loads(orjson.dumps(stayed.remembers())))
    begin_s = MIDNIGHT_S + 20 * 3600
    for policy, ahead_s in ((stayed, AHEAD_S), (restarted, begin_s - 7)):
        drive(policy, begin_s, begin_s + 100, ahead_s)
        (stream,) = policy._streams.values()
        assert stream.near == pytest.approx(1.0)
        for slot in range(288):
            at_s = slot * SLOT_S
            usual = unbroken._streams["default"].forecast.season.rate(at_s)
            assert stream.forecast.season.rate(at_s) == pytest.approx(usual, abs=0.01)


def test_learned_speed_boot_times_and_lengths_survive_a_restart() -> None:
    settings = ScalingSettings(ScalingLimits(0, 4), speed=SPEED, timings=Timings(boot_s=60.0))
    (scaler, speed), lengths = settings.scaler(), AnswerLengths(64.0)
    for _ in range(30):
        speed.add(Tokens(1, 1000.0), 2.0, busy=True)
        lengths.learn(400, 230, 17)
    for second in range(0, 100, 5):
        scaler.decide(Signals(float(second), booted_s=(150.0,)))
    memory = memory_of(settings, "m", {"lengths": lengths}, scaler.policy, speed)
    (again, speed_then), lengths_then = settings.scaler(), AnswerLengths(64.0)
    data = saved(memory)
    assert memory_of(settings, "m", {"lengths": lengths_then}, again.policy, speed_then).recall(data) == []
    assert speed_then.factor == speed.factor == pytest.approx(2.0)
    assert (lengths_then.prompt(400), lengths_then.output) == (lengths.prompt(400), 17.0)
    assert "wait in 155 s" in again.decide(Signals(0.0)).reason
    # Nothing more was learned: nothing is to be written.
    assert memory.save(2) is None
    # Of another model, or measured in other units, it does not hold.
    other = memory_of(settings, "n", {}, again.policy, speed_then).recall(data)
    assert len(other) == 1
    assert "'m'" in other[0]
    assert "'n'" in other[0]


def test_remembered_boot_time_has_the_bounds_of_a_measured_one() -> None:
    policy = DeadlinePolicy(SPEED, timings=Timings(boot_s=1.0))
    policy.recall({"boot_s": 1e6, "classes": {}})
    assert policy.remembers()["boot_s"] == LONGEST_BOOT


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
PARTS = ("speed", "policy deadline", "lengths")


def all_parts() -> tuple[ScalingMemory, dict[str, Any]]:
    settings = ScalingSettings(ScalingLimits(0, 4), speed=SPEED)
    scaler, speed = settings.scaler()
    parts = {"speed": speed, "policy deadline": scaler.policy, "lengths": AnswerLengths(64.0)}
    return ScalingMemory(holds_for(settings, "m"), parts), parts


@given(data=st.binary(max_size=200) | JSON.map(orjson.dumps))
def test_invalid_memory_is_reported_without_an_exception(data: bytes) -> None:
    memory, _ = all_parts()
    assert len(memory.recall(data)) == 1
    assert saved_ms(data) == -1


@given(parts=st.dictionaries(st.sampled_from(PARTS), JSON, max_size=3), data=st.data())
def test_invalid_parts_are_skipped_and_the_rest_still_works(
    parts: dict[str, Any], data: st.DataObject
) -> None:
    memory, made = all_parts()
    before = {name: part.remembers() for name, part in made.items()}
    whole = orjson.loads(saved(memory))
    for name in PARTS:
        # Right except for one field.
        field = data.draw(st.sampled_from(sorted(whole["parts"][name])))
        parts.setdefault(name, {**whole["parts"][name], field: data.draw(JSON)})
    problems = memory.recall(orjson.dumps({**whole, "parts": parts}))
    assert all(len(problem) < 300 and "\n" not in problem for problem in problems)
    for name in PARTS:
        if any(problem.startswith(f"{name}:") for problem in problems):
            assert made[name].remembers() == before[name]
    scaler = made["policy deadline"]
    for second in range(5):
        signals = Signals(5.0 * second, ready=1, arrived=work(5.0), wall_s=MIDNIGHT_S + 5.0 * second)
        assert 0 <= scaler.decide(signals).wanted <= 10_000
    assert 1 <= made["lengths"].prompt(100) < float("inf")
    assert 1e-3 <= made["speed"].factor <= 1e3


@given(cut=st.integers(0, 2**14), flip=st.integers(0, 255))
def test_truncated_or_damaged_document_raises_nothing(cut: int, flip: int) -> None:
    memory, _ = all_parts()
    data = bytearray(saved(memory))
    memory.recall(bytes(data[:cut]))
    data[cut % len(data)] ^= flip
    memory.recall(bytes(data))


class Plain:
    def decide(self, signals: Signals) -> Decision:
        return Decision(1, "one")


class Fails(Plain):
    def remembers(self) -> Mapping[str, object]:
        raise RuntimeError("no")

    def recall(self, memory: Mapping[str, object]) -> None:
        raise RuntimeError("two\nlines")


class Hoards(Plain):
    def remembers(self) -> Mapping[str, object]:
        return {"all": "x" * MAX_PART_BYTES}

    def recall(self, memory: Mapping[str, object]) -> None: ...


@pytest.mark.parametrize("policy", [Plain(), Fails(), Hoards()], ids=lambda one: type(one).__name__)
def test_policy_without_memory_or_with_failing_memory_is_harmless(policy: Plain) -> None:
    lengths = AnswerLengths(64.0)
    lengths.learn(400, 230, 17)
    data = saved(ScalingMemory(OF, {"policy": policy, "lengths": lengths}))
    assert list(orjson.loads(data)["parts"]) == ["lengths"]
    given_one = orjson.dumps({**orjson.loads(data), "parts": {"policy": {}, "lengths": lengths.remembers()}})
    again = AnswerLengths(64.0)
    problems = ScalingMemory(OF, {"policy": policy, "lengths": again}).recall(given_one)
    assert problems == (["policy: RuntimeError: two"] if isinstance(policy, Fails) else [])
    assert again.output == 17


def test_memory_is_bounded_and_timestamped() -> None:
    policy = DeadlinePolicy(SPEED)
    for quarter in range(15 * 96 * 3):
        policy.learn(quarter * 300.0, quarter * 300.0 + 300, work(quarter / 7))
    data = saved(ScalingMemory(OF, {"p": policy}), at_ms=1_700_000_000_000)
    assert MAX_PART_BYTES / 12 < len(data) < MAX_PART_BYTES / 5
    assert saved_ms(data) == 1_700_000_000_000
    assert orjson.loads(data)["format"] == FORMAT


def test_days_follow_the_wall_clock() -> None:
    policy = DeadlinePolicy(SPEED)
    known_days(policy)
    season = policy._streams["default"].forecast.season
    for hour in (0, 8, 9, 10, 23):
        assert season.rate(MIDNIGHT_S + hour * 3600) == pytest.approx(rate(hour * 3600), abs=0.5)


def test_invalid_wall_clock_time_is_not_learned_from() -> None:
    policy = DeadlinePolicy(SPEED)
    before = policy.remembers()
    found = Scaler(policy, SPEED).decide(Signals(0.0, ready=2, arrived=work(5.0), wall_s=math.nan))
    assert (found.wanted, found.failed) == (2, False)
    assert policy.remembers() == before


def test_unlearned_speed_stays_at_the_assumed_value() -> None:
    speed, again = LearnedSpeed(SPEED), LearnedSpeed(SPEED)
    speed.add(Tokens(1, 1000.0), 2.0, busy=True)
    again.recall(speed.remembers())
    assert again.factor == speed.factor == 1.0
    for each in (speed, again):
        each.add(Tokens(10, 10_000.0), 20.0, busy=True)
    assert again.factor == speed.factor == pytest.approx(2.0)


CLASSES = (ServiceClass(), ServiceClass("alarm", 5.0), ServiceClass("archive", 3600.0))
AMOUNTS = st.builds(Tokens, st.floats(0, 1e6), st.floats(0, 1e9), st.floats(0, 1e9))


@given(
    st.lists(st.dictionaries(st.sampled_from(["default", "alarm", "archive", "gone"]), AMOUNTS), max_size=5),
    AMOUNTS,
)
def test_seasonal_parts_add_up_and_are_not_negative(seen: list[dict[str, Tokens]], tokens: Tokens) -> None:
    mix = ClassMix(CLASSES)
    for each in seen:
        mix.add(each)
    parts = mix.split(tokens)
    assert [of for of, _ in parts] == list(CLASSES)
    assert all(min(part.requests, part.prompt, part.output) >= 0 for _, part in parts)
    total = sum((part for _, part in parts), Tokens())
    for name in ("requests", "prompt", "output"):
        assert getattr(total, name) == pytest.approx(getattr(tokens, name), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("ticks", "each"), [(40, 100.0), (1, 4000.0)])
def test_every_report_counts_the_last_requests(ticks: int, each: float) -> None:
    mix = ClassMix(CLASSES)
    mix.add({"alarm": Tokens(100_000, 1, 1)})
    for _ in range(ticks):
        mix.add({"archive": Tokens(0.75 * each, 1, 1), "gone": Tokens(0.25 * each, 1, 1)})
    shares = {of.name: part.requests for of, part in mix.split(Tokens(1, 1, 1))}
    assert shares["archive"] / shares["default"] == pytest.approx(3, rel=0.01)
    assert shares["alarm"] < 0.4
    # A handful among thousands means little.
    mix.add({"alarm": Tokens(35, 1, 1)})
    more = {of.name: part.requests for of, part in mix.split(Tokens(1, 1, 1))}
    assert more["alarm"] < shares["alarm"] + 0.02


def test_class_shares_survive_a_restart() -> None:
    before, after = ClassMix(CLASSES), ClassMix(CLASSES)
    before.add({"alarm": Tokens(10, 20, 30), "default": Tokens(30, 20, 10)})
    after.recall(orjson.loads(orjson.dumps(before.remembers())))
    assert after.split(Tokens(4, 4, 4)) == before.split(Tokens(4, 4, 4))
    for wrong in ({"alarm": [1, 2]}, {"alarm": [-1, 0, 0]}, {"alarm": "x"}, {"alarm": [float("nan"), 0, 0]}):
        with pytest.raises(ValueError, match="alarm"):
            after.recall(wrong)
    assert after.split(Tokens(4, 4, 4)) == before.split(Tokens(4, 4, 4))


def test_single_class_gets_everything() -> None:
    mix = ClassMix(CLASSES[:1])
    mix.add({"default": Tokens(3, 0.1, 0.7)})
    assert mix.split(Tokens(0.1, 0.2, 0.3)) == [(CLASSES[0], Tokens(0.1, 0.2, 0.3))]
