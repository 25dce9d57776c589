"""A real evening: the turning points of a fight, as found by the pipeline's stages."""

from __future__ import annotations

import datetime
from pathlib import Path

import orjson
import pytest
from benchmarks.expected_events import TrendsJob

FIGHT = Path(__file__).parents[2].parent / "shared" / "data" / "tweets_fight_2017.jsonl"
WITHIN_S = 160
TURNS = {
    "ref": "00:15:40",
    "round": "00:18:15",
    "hammer": "00:23:45",
    "4": "00:31:45",
    "tired": "00:34:00",
    "5": "00:34:30",
    "6": "00:37:45",
    "round 9": "00:50:20",
    "50 0": "00:51:55",
    "it's over": "00:52:10",
    "tko": "00:52:50",
    "undefeated": "00:55:05",
    "octagon": "00:57:20",
    "rematch": "00:59:35",
}


def clock(time_ms: int) -> str:
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.timezone.utc).strftime("%H:%M:%S")


def test_the_turning_points_are_found_at_the_documented_times() -> None:
    if not FIGHT.is_file():
        pytest.skip(f"{FIGHT} is missing")
    events = []
    for n, line in enumerate(FIGHT.read_bytes().splitlines()):
        row = orjson.loads(line)
        moment = datetime.datetime.fromisoformat(row["created_at"].replace("Z", "+00:00"))
        events.append({"n": n, "at": int(moment.timestamp() * 1000), "text": row["text"]})
    answers = TrendsJob().foretold(events).values()
    seen = {answer["trend"]: clock(answer["time_ms"]) for answer in answers if answer["kind"] == "born"}
    found = {
        (term, seen[answer["trend"]])
        for answer in answers
        if answer["kind"] in ("ended", "changed")
        for term in answer["terms"]
    }
    # Posts go to shards by their positions, which are others here: what is one trend may differ a little.
    for term, at in TURNS.items():
        times = [time for name, time in found if name == term]
        assert any(abs(_seconds(time) - _seconds(at)) <= WITHIN_S for time in times), f"{term}: {times}"


def _seconds(words: str) -> int:
    hours, minutes, seconds = map(int, words.split(":"))
    return hours * 3600 + minutes * 60 + seconds
