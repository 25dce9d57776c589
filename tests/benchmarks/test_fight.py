"""A real evening, against what a person wrote down from its posts."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.trends import FightEvent, Sighting, Span, fight_events, measure_fight, read_posts, scored

from forebay.apps.trends.terms import terms_of
from forebay.errors import SettingError

FIGHT = Path(__file__).parents[2].parent / "shared" / "data" / "tweets_fight_2017.jsonl"
MIN_POSTS = 6


def needs_data() -> None:
    if not FIGHT.is_file():
        pytest.skip(f"{FIGHT} is missing")


def test_posts_are_about_each_event_when_it_happens() -> None:
    needs_data()
    posts = [
        (ms / 1000, {w for t in terms_of(text) for w in (t, *t.split())}) for ms, text in read_posts(FIGHT)
    ]
    for event in fight_events():
        span = event.span
        after = sum(span.begin_s <= at < span.begin_s + 120 for at, words in posts if words & span.words)
        before = sum(span.begin_s - 600 <= at < span.begin_s for at, words in posts if words & span.words)
        assert after >= max(MIN_POSTS, 1.5 * before / 5), event.what


def test_a_second_trend_of_an_event_is_wrong() -> None:
    events = [FightEvent("a storm", Span(frozenset({"storm"}), 100.0, 200.0))]
    seen = [Sighting(frozenset({"storm"}), at, at) for at in (80.0, 110.0, 150.0)]
    found = scored(events, seen)
    assert (found["precision"], found["recall"], found["delay_s_p50"]) == (1 / 3, 1.0, 10.0)


def test_the_fight_is_found_better_than_by_the_baselines() -> None:
    needs_data()
    found = measure_fight(FIGHT)
    assert found["precision"] >= 0.45
    assert found["recall"] >= 0.6
    for baseline in found["baselines"].values():
        assert found["recall"] > baseline["recall"] + 0.2
        assert found["precision"] > baseline["precision"] + 0.1
    names = {trend["name"] for trend in found["trends"]}
    assert {"50-0", "round 9", "hammer fist", "octagon"} <= names


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "no time"}\n')
    with pytest.raises(SettingError, match="expected JSON lines with created_at and text"):
        read_posts(tmp_path / "x.jsonl")
