"""The measurement of trends: criteria, and a small stream end to end."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from benchmarks.bursts import BurstPlan, BurstStream, PlantedBurst
from benchmarks.trends import (
    FightEvent,
    Sighting,
    Span,
    hits,
    measure_fight,
    measure_trends,
    memory,
    oracle_delays_s,
    read_posts,
    scored,
    sightings,
    zscore_sightings,
)

from benchmarks import trends as module
from forebay.apps.trends.values import TrendEvent, TrendSettings
from forebay.errors import SettingError

STORM = PlantedBurst(("storm", "#storm1"), 100.0, 300.0, "step", 5.0, 1.0, 4.0)
GOAL = PlantedBurst(("goal", "goal keeper"), 150.0, 250.0, "hill", 8.0, 1.0, 7.0)


def seen(*terms: str, at: float, onset: float = 0.0) -> Sighting:
    return Sighting(frozenset(terms), at, onset)


def test_the_first_sighting_of_a_burst_is_right_and_a_second_is_wrong() -> None:
    found = hits(
        [STORM, GOAL], [seen("storm", at=110, onset=104), seen("#storm1", at=130), seen("keeper", at=180)]
    )
    assert found["precision"] == pytest.approx(2 / 3)
    assert found["recall"] == 1
    assert found["delay_s_p50"] == 10
    assert found["delay_s_p50_by_shape"] == {"step": 10, "hill": None}
    assert found["onset_error_s_p50"] == 4


@pytest.mark.parametrize("at", [80, 361])
def test_a_sighting_at_another_time_is_wrong(at: float) -> None:
    assert hits([STORM], [seen("storm", at=at)]) == {
        "precision": 0.0,
        "recall": 0.0,
        "delay_s_p50": None,
        "delay_s_p50_by_shape": {"step": None},
        "onset_error_s_p50": None,
    }


def test_a_plain_zscore_reports_a_rise_once_at_its_batchs_end() -> None:
    posts = [(second * 1000, "tea and cake") for second in range(0, 1200, 5)]
    posts += [(600_000 + 100 * n, "storm") for n in range(200)]
    (one,) = zscore_sightings(sorted(posts))
    assert (one.terms, one.reported_s, one.onset_s) == ({"storm"}, 615, 600)


def test_small_stream_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISTINCT_TERMS", 50_000)
    plan = BurstPlan(seed=2, bursts=4, hours=0.4, warm_up_s=400, rate_per_s=40, vocabulary=20_000)
    report = measure_trends(plan, TrendSettings(width_bits=15))
    assert report["recall"] >= 0.8
    assert report["precision"] >= 0.6
    assert report["events_per_s"] > 0
    assert report["baselines"]["kleinberg_offline"]["recall"] >= 0.6
    assert {"delay_s_p50", "state_mib", "distinct_terms"} <= report.keys()


FIGHT = Path(__file__).parents[2].parent / "shared" / "data" / "tweets_fight_2017.jsonl"


def needs_data() -> None:
    if not FIGHT.is_file():
        pytest.skip(f"{FIGHT} is missing")


def test_the_fight_is_found_better_than_by_the_baselines() -> None:
    needs_data()
    found = measure_fight(FIGHT)
    assert found["precision"] >= 0.5
    assert found["recall"] >= 0.5
    for baseline in found["baselines"].values():
        assert found["recall"] > baseline["recall"] + 0.2
        assert found["precision"] > baseline["precision"] + 0.1
    names = {trend["name"] for trend in found["trends"]}
    assert {"50-0", "round 9", "hammer fist", "octagon"} <= names


def test_the_oracle_needs_enough_posts_and_evidence() -> None:
    stream = BurstStream(BurstPlan(bursts=1, hours=1.0))
    planted = stream.bursts[0]
    settings = TrendSettings()
    quiet = dataclasses.replace(planted, terms=("storm", "#storm1"), onset_s=100.0, end_s=300.0, factor=5.0)

    def delays(base_per_s: float, *posts: tuple[float, str]) -> list[float]:
        stream.bursts = (dataclasses.replace(quiet, base_per_s=base_per_s / rhythm),)
        before = [(second * 1000, "storm") for second in range(90, 100)]
        return oracle_delays_s(stream, [*before, *((int(at * 1000), text) for at, text in posts)], settings)

    rhythm = float(stream.rate_per_s(100.0)) / stream.plan.rate_per_s
    new = [(101.0 + second, "the storms #storm1 storm") for second in range(6)]
    assert delays(100.0, *new) == [5.0]
    once_a_second = [(101.0 + second, "storm") for second in range(60)]
    # In t seconds, t posts and t/5 expected ones: t ln 5 - t + t/5 nats, which is 15 or more from t = 19.
    assert delays(0.2, *once_a_second) == [19.0]
    assert delays(1.0, *once_a_second) == []


def test_a_second_trend_of_an_event_is_wrong() -> None:
    events = [FightEvent("a storm", Span(frozenset({"storm"}), 100.0, 200.0))]
    seen = [Sighting(frozenset({"storm"}), at, at) for at in (80.0, 110.0, 150.0)]
    found = scored(events, seen)
    assert (found["precision"], found["recall"], found["delay_s_p50"]) == (1 / 3, 1.0, 10.0)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "no time"}\n')
    with pytest.raises(SettingError, match="expected JSON lines with created_at and text"):
        read_posts(tmp_path / "x.jsonl")


def test_no_sightings_give_no_correct_ones() -> None:
    assert hits([STORM], [])["precision"] == 0


def event(kind: str, trend: int, term: str, at: float, into: int | None = None) -> TrendEvent:
    return TrendEvent(kind, trend, term, (term,), int(at * 1000), 0, 0, 1.0, 0.1, 20.0, into)  # type: ignore[arg-type]


def test_merged_trends_are_one_sighting() -> None:
    events = [
        event("born", 0, "a", 10),
        event("born", 1, "b", 8),
        event("merged", 1, "b", 20, 0),
        event("ended", 0, "a", 60),
    ]
    (one,) = sightings(events)
    assert (one.terms, one.reported_s) == ({"a", "b"}, 8)


def test_a_return_is_a_sighting_of_its_own() -> None:
    again = event("returned", 0, "a", 90)
    events = [event("born", 0, "a", 10), event("ended", 0, "a", 60), dataclasses.replace(again, rises=2)]
    assert [one.reported_s for one in sightings(events)] == [10, 90]


def test_memory_is_that_of_the_sketch() -> None:
    found = memory(TrendSettings(width_bits=15), 200_000)
    assert found["distinct_terms"] == 200_000
    assert 1.5 < found["state_mib"] < 64
