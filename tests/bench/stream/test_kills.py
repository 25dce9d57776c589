"""Which parts are killed, and the report of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.stream.stream_runs import even, event, lost, stream_run

from forebay.bench.stream.document import measured_stream
from forebay.bench.stream.events import EventSlo
from forebay.bench.stream.kills import (
    EDGE,
    PARTS,
    Kill,
    Killer,
    check_kills,
    drawn_kills,
    goodput_document,
    next_result_s,
    read_kill,
    since_kills,
)
from forebay.bench.stream.records import Killed
from forebay.errors import SettingError


@pytest.mark.parametrize("words", ["jvm", "jvm:", "broker:5", "jvm:-1", "jvm:nan", "command:1e9", "", ":3"])
def test_invalid_kills(words: str) -> None:
    with pytest.raises(SettingError, match="--kill: expected PART:SECONDS, such as jvm:20"):
        read_kill(words)


@given(st.integers(1, 30), st.floats(10, 1000), st.integers(0, 2**31))
def test_drawn_kills_are_in_the_middle_in_order_and_by_turns(count: int, seconds: float, seed: int) -> None:
    kills = drawn_kills(count, seconds, seed, PARTS)
    assert kills == drawn_kills(count, seconds, seed, PARTS)
    assert [kill.part for kill in kills] == [PARTS[n % len(PARTS)] for n in range(count)]
    times = [kill.at_s for kill in kills]
    assert times == sorted(times)
    assert all(EDGE * seconds - 0.01 <= at_s <= (1 - EDGE) * seconds + 0.01 for at_s in times)


def test_a_recovery_ends_with_a_result_that_was_answered_after_the_kill() -> None:
    # Answered at 0.316 and 5.316 after their time, committed half a second later.
    stages = (0.001, 0.002, 0.003, 0.01, 5.1, 0.2, 0.001, 0.5)
    events = [event(0, 9.5), event(1, 9.6, stages), lost(2, 9.7)]
    assert next_result_s(Killed("jvm", 10.0, 10.0), events) == pytest.approx(9.6 + 5.817 - 10.0)
    assert next_result_s(Killed("jvm", 20.0, 20.0), events) is None


def test_a_lag_that_grows_while_parts_are_away_makes_no_run_invalid() -> None:
    slow = [event(n, n / 10, (0.001, 0.002, 0.003, 0.01, 0.1 + n / 40, 0.2, 0.001, 0.5)) for n in range(200)]
    assert not measured_stream(stream_run(slow)).verdict.valid
    assert measured_stream(stream_run(slow, kills=(Killed("jvm", 1.0, 1.0),))).verdict.valid


def test_a_kill_after_the_load_is_refused() -> None:
    check_kills([Kill("jvm", 11.9)], 12.0)
    with pytest.raises(SettingError, match=r"--kill jvm:12: expected less than 12.0"):
        check_kills([Kill("jvm", 12.0)], 12.0)


def test_a_kill_that_was_not_made_is_reported() -> None:
    missed = measured_stream(stream_run(even(200), planned_kills=1), EventSlo(within_s=1.0))
    assert any(words.startswith("0 of 1 kills were made") for words in missed.verdict.reasons)
    document = goodput_document([missed])
    assert (document["without_kills"], document["with_kills"]["goodput"]) == (None, [1.0])


class Busy:
    """A run whose JVM is a process with some processor time."""

    def __init__(self) -> None:
        words = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ntime.sleep(600)"
        self.process = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def kill_jvm(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.heavy
def test_usage_of_a_killed_process_is_kept() -> None:
    killer = Killer(Busy(), None, [Kill("jvm", 0.0)], 0, lambda _: None)  # type: ignore[arg-type]
    killer.look()
    assert killer.used_s >= 0.29


def test_a_kill_of_the_command_line() -> None:
    assert read_kill("jvm:20") == Kill("jvm", 20.0)
    assert read_kill("engine:0.5") == Kill("engine", 0.5)


def test_goodput_without_and_with_kills_side_by_side() -> None:
    slo = EventSlo(within_s=1.0)
    killed = (Killed("jvm", 5.0, 5.0),)
    with_kills = [*even(199), event(199, 19.9, results=2, committed_s=25.0)]
    found = [
        measured_stream(stream_run(even(200)), slo),
        measured_stream(stream_run(with_kills, kills=killed, planned_kills=1), slo),
    ]
    document = goodput_document(found)
    assert document["without_kills"]["goodput"] == [1.0]
    assert document["with_kills"]["goodput"] == [0.995]
    assert document["with_kills"]["doubled"] == 1
    (kill,) = document["with_kills"]["kills"]
    assert kill["next_result_s"] == pytest.approx(4.8 + 0.817 - 5.0)
    assert goodput_document(found[:1])["with_kills"] is None


def test_checkpoints_before_the_last_restart_do_not_count() -> None:
    checkpoints_us = [1_000_000, 3_000_000, 6_500_000]
    killed = [Killed("jvm", 1.0, 2.0), Killed("jvm", 4.0, 5.5)]
    assert since_kills(checkpoints_us, [], 1_000_000) == checkpoints_us
    assert since_kills(checkpoints_us, killed, 1_000_000) == [6_500_000]
