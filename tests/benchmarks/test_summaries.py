"""Summaries made while windows are open: sooner than those of collected windows, at a similar cost, with
every event once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from benchmarks.stage import RealStage, SimulatedStage
from benchmarks.summaries import Tally, measure_chats, measure_summaries, read_channels, reported_once

from forebay.apps.summaries.intake import Arrival
from forebay.apps.summaries.plan import HOUR_MS, SummaryPlan, Windows
from forebay.apps.summaries.prompt import SummaryCall
from forebay.apps.summaries.values import item_of
from forebay.errors import SettingError
from forebay.planning.simulate.engine import LLAMA_8B
from forebay.testing.engine import ScriptedEngine
from forebay.testing.script import Fixed

CHATS = Path(__file__).parents[2].parent / "shared" / "data" / "irc_ubuntu"
LOG = """\
=== bob [~bob@example] has joined #ubuntu
[11:58] <bob> hello
[11:58] <eve> hi bob
[11:59]  * bob waves
[12:01] <bob> my <b>sound</b> is gone
[01:00] <eve> try [this]
"""


def chatter(channels: int, events: int) -> dict[str, list[Arrival]]:
    rng = random.Random(1)
    return {
        f"c{c}": [
            Arrival(
                f"c{c}@{n}",
                n * 2 * HOUR_MS // events + c,
                f"user{n % 9}: " + "word " * rng.randrange(3, 30) + str(n),
            )
            for n in range(events)
        ]
        for c in range(channels)
    }


def test_work_while_windows_are_open_pays() -> None:
    plan = SummaryPlan(Windows.tumbling(HOUR_MS))
    found = measure_summaries(chatter(3, 600), lambda: SimulatedStage(LLAMA_8B), plan)
    assert found["close_ratio"] <= 0.3
    assert found["token_ratio"] <= 1.3
    assert (found["missed"], found["doubled"], found["failed"], found["over_budget"]) == (0, 0, 0, 0)
    assert found["windows"] == 6 == found["baselines"]["one_call"]["windows"]
    assert set(found["baselines"]) == {"one_call", "map_reduce"}


def test_an_event_that_is_lost_or_doubled_is_counted() -> None:
    channels, plan = {"c": [Arrival("a", 1, "x"), Arrival("b", 2, "y")]}, SummaryPlan(Windows.tumbling(10))
    tally = Tally()
    tally.asked(("c", 10), SummaryCall("1", "chunk", "c", (), (item_of("a", 1, "x"),), 100))
    assert reported_once(channels, tally, plan) == (1, 0)
    tally.asked(
        ("c", 10), SummaryCall("2", "chunk", "c", (), (item_of("a", 1, "x"), item_of("b", 2, "y")), 100)
    )
    missed, doubled = reported_once(channels, tally, plan)
    assert missed == 0
    assert doubled >= 1


def test_a_real_stage_answers_through_an_engine() -> None:
    """The scripted engine's answers have no content: checks that it runs, and sends each event once."""
    plan = SummaryPlan(Windows.tumbling(HOUR_MS))
    found = measure_summaries(
        chatter(2, 60),
        lambda: RealStage(lambda: ScriptedEngine(Fixed(0.001)), "fake", speed=36_000.0, timeout_s=60),
        plan,
    )
    assert (found["missed"], found["doubled"], found["failed"]) == (0, 0, 0)
    assert found["windows"] == 4


def test_logs_become_streams(tmp_path: Path) -> None:
    (tmp_path / "day.raw.txt").write_text(LOG)
    (text,) = read_channels(tmp_path).values()
    assert [each.text for each in text] == [
        "bob: hello",
        "eve: hi bob",
        "bob: waves",
        "bob: my <b>sound</b> is gone",
        "eve: try [this]",
    ]
    assert text[0].time_ms is not None
    since = [((each.time_ms or 0) - text[0].time_ms) / 60_000 for each in text]
    assert since == [0, 0.5, 1, 3, 62]
    with pytest.raises(SettingError, match="no logs"):
        read_channels(tmp_path / "none")


@pytest.mark.skipif(not CHATS.is_dir(), reason="needs ../shared/data/irc_ubuntu")
def test_real_chats_reach_the_figures() -> None:
    found = measure_chats(CHATS, None, {}, lambda line: None)
    assert found["events"] == 11_644
    assert found["close_ratio"] <= 0.3
    assert all(each["token_ratio"] <= 1.3 for each in found["baselines"].values())
    assert (found["missed"], found["doubled"], found["left_out"], found["over_budget"]) == (0, 0, 0, 0)
