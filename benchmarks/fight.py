"""Scores trend finders on the tweets of a fight against events that a person wrote down from the
posts alone."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.figures import quantile
from benchmarks.trends import (
    Sighting,
    Span,
    find_trends,
    kleinberg_sightings,
    matched,
    sightings,
    zscore_sightings,
)
from forebay.apps.trends.values import TrendSettings
from forebay.errors import SettingError

EVENTS_FILE = Path(__file__).with_name("fight.jsonl")
DAY = "2017-08-27T"
SETTINGS = TrendSettings()
EARLY_S = 15.0


@dataclass(frozen=True, slots=True)
class FightEvent:
    what: str
    span: Span


def fight_events() -> list[FightEvent]:
    found = []
    for line in EVENTS_FILE.read_bytes().splitlines():
        row = orjson.loads(line)
        begin, end = (_time_ms(f"{DAY}{row[name]}Z") / 1000 for name in ("from", "until"))
        found.append(FightEvent(row["what"], Span(frozenset(row["terms"]), begin, end)))
    return found


def read_posts(path: Path) -> list[tuple[int, str]]:
    """The posts (ms, text) of JSON lines with `created_at` and `text`, in order of time."""
    try:
        rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        posts = [(_time_ms(row["created_at"]), row["text"] or "") for row in rows]
    except (OSError, orjson.JSONDecodeError, KeyError, ValueError) as error:
        raise SettingError(
            f"{path} cannot be read: expected JSON lines with created_at and text: {error}"
        ) from None
    return sorted(posts, key=lambda post: post[0])


def measure_fight(path: Path) -> dict[str, Any]:
    """Precision, recall and delay of Forebay's trends and of two baselines, and the trends themselves."""
    posts = read_posts(path)
    events = fight_events()
    trends = list(find_trends(posts, SETTINGS, texts=True))
    least_nats = 15.0
    start_s = posts[0][0] / 1000
    moved = [(time_ms - posts[0][0], text) for time_ms, text in posts]
    return {
        "events": len(events),
        **scored(events, sightings(trends)),
        "baselines": {
            "kleinberg_offline": scored(events, _later(kleinberg_sightings(moved, least_nats), start_s)),
            "zscore": scored(events, _later(zscore_sightings(moved), start_s)),
        },
        "trends": [_row(event) for event in trends if event.kind == "ended"],
    }


def scored(events: Sequence[FightEvent], seen: Sequence[Sighting]) -> dict[str, Any]:
    """`missed` names the events without a trend; `wrong` lists the trends without an event, or with one
    that another trend found first."""
    found = matched([event.span for event in events], seen, early_s=EARLY_S, grace_s=0.0)
    delays = sorted(one.said_s - events[index].span.begin_s for index, one in found.items())
    right = {id(one) for one in found.values()}
    return {
        "precision": len(found) / len(seen) if seen else 0.0,
        "recall": len(found) / len(events),
        "delay_s_p50": quantile(delays, 0.5) if delays else None,
        "seen": len(seen),
        "missed": [event.what for index, event in enumerate(events) if index not in found],
        "wrong": [sorted(one.terms)[:6] for one in seen if id(one) not in right],
    }


def _later(seen: Sequence[Sighting], by_s: float) -> list[Sighting]:
    return [Sighting(one.terms, one.said_s + by_s, one.onset_s + by_s) for one in seen]


def _row(event: Any) -> dict[str, Any]:
    return {
        "name": event.name,
        "terms": event.terms[:6],
        "onset": _clock(event.onset_ms),
        "peak": _clock(event.peak_ms),
        "end": _clock(event.time_ms),
        "peak_per_s": round(event.rate_per_s, 2),
        "score": round(event.score, 1),
    }


def _time_ms(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def _clock(time_ms: int) -> str:
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.timezone.utc).strftime("%H:%M:%S")
