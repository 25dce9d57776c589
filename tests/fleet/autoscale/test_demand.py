from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.fleet.autoscale.base import Backlog, ReplicaSpeed, ServiceClass, Tokens
from forebay.fleet.autoscale.demand import (
    FRESH_S,
    GONE_S,
    SUFFIX,
    StreamDemand,
    encode_demand,
    merged,
    process_of,
    read_reports,
    report_name,
)
from forebay.fleet.autoscale.learned import ClassMix, LearnedSpeed
from forebay.fleet.autoscale.loop import PublishedReplicas, ReplicaCounts
from forebay.fleet.autoscale.meter import MAX_PARTS, AnswerLengths, DemandMeter, DemandReport, WaitingRecords

NOW_MS = 1_700_000_000_000


def ids(count: int) -> list[str]:
    return [str(number) for number in range(count)]


USUAL, ALARM, ARCHIVE = ServiceClass(slo_s=60.0), ServiceClass("alarm", 5.0), ServiceClass("archive", 3600.0)


def test_backlog_is_reported_by_due_time_and_cost() -> None:
    meter = DemandMeter(answer_tokens=100.0)
    for number in range(10):
        meter.accept(number, str(number), 400, NOW_MS + number * 1000, USUAL)
    found = meter.report(NOW_MS + 10_000, sent=ids(4))
    assert found.running == 4
    assert sum(part.tokens.requests for part in found.waiting) == 6
    assert found.arrived == Tokens(10, 1000.0, 1000.0)
    # The oldest four are at replicas: the first that waits was read at 4 s.
    assert abs(found.waiting[0].due_ms - (NOW_MS + 64_000)) <= 5000
    meter.finish(0, prompt_tokens=300, output_tokens=20)
    meter.finish(1)
    after = meter.report(NOW_MS + 11_000, sent=())
    assert after.done == Tokens(1, 300, 20)
    assert sum(part.tokens.requests for part in after.waiting) == 8
    # One answer was seen: what waits is expected to be like it.
    assert after.waiting[0].tokens.output / after.waiting[0].tokens.requests == pytest.approx(20)
    assert after.waiting[0].tokens.prompt / after.waiting[0].tokens.requests == pytest.approx(300)


def test_restored_requests_count_as_backlog_not_as_arrivals() -> None:
    meter = DemandMeter(10.0)
    meter.accept(1, "1", 40, NOW_MS - 3_600_000, USUAL, again=True)
    meter.accept(2, "2", 40, NOW_MS, USUAL)
    found = meter.report(NOW_MS, sent=())
    assert found.arrived.requests == 1
    assert [part.tokens.requests for part in found.waiting] == [1, 1]
    assert found.waiting[0].due_ms < NOW_MS < found.waiting[1].due_ms


def test_backlog_is_due_by_its_class_whatever_is_running() -> None:
    meter = DemandMeter(10.0)
    for number, service in enumerate((ARCHIVE, ARCHIVE, USUAL, ALARM)):
        meter.accept(number, str(number), 40, NOW_MS, service)
    found = meter.report(NOW_MS, sent=("0", "another's"))
    assert found.by_class == {
        "default": Tokens(1, 10, 10),
        "alarm": Tokens(1, 10, 10),
        "archive": Tokens(2, 20, 20),
    }
    assert found.running == 1
    due_s = [((part.due_ms - NOW_MS) / 1000, part.tokens.requests) for part in found.waiting]
    # Moments are reported to a twelfth of an SLO.
    assert due_s == [
        (pytest.approx(5, abs=0.5), 1),
        (pytest.approx(60, abs=5), 1),
        (pytest.approx(3600, abs=300), 1),
    ]
    twice = found.times(2)
    assert (twice.by_class["archive"], twice.arrived) == (Tokens(4, 40, 40), Tokens(8, 80, 80))


def test_parts_of_different_classes_are_distinguished() -> None:
    slos_s = [10.0 * 3**power for power in range(9)]
    meter = DemandMeter(10.0)
    for number in range(9 * 24):
        slo_s = slos_s[number % 9]
        service = ServiceClass(f"c{number % 9}", slo_s)
        meter.accept(number, str(number), 40, NOW_MS - round(number // 9 / 24 * slo_s * 1000), service)
    first, *_ = meter.report(NOW_MS, sent=()).waiting
    assert first.tokens.requests < 9, "what is due first is no more than a part of it"


@given(read_s=st.lists(st.integers(-10_000_000, 60), max_size=300), running=st.integers(0, 400))
def test_whole_backlog_is_reported_in_few_parts(read_s: list[int], running: int) -> None:
    meter = DemandMeter(10.0)
    for number, second in enumerate(read_s):
        meter.accept(number, str(number), 40, NOW_MS + second * 1000, USUAL)
    found = meter.report(NOW_MS, sent=ids(running))
    assert len(found.waiting) <= MAX_PARTS
    assert sum(part.tokens.requests for part in found.waiting) == max(len(read_s) - running, 0)
    assert found.running == min(running, len(read_s))


def test_prompt_length_has_a_fixed_part_and_one_per_event_byte() -> None:
    lengths = AnswerLengths(50.0)
    assert lengths.prompt(400) == 100
    for number in range(600):
        chars = 100 + (number * 37) % 900
        lengths.learn(chars, 200 + chars // 5, 30)
    assert lengths.prompt(100) == pytest.approx(220, rel=0.03)
    assert lengths.prompt(1000) == pytest.approx(400, rel=0.03)
    assert lengths.output == pytest.approx(30)


@given(samples=st.lists(st.tuples(*[st.integers(0, 10**6)] * 3), max_size=50), chars=st.integers(0, 10**7))
def test_expected_tokens_are_always_a_number(samples: list[tuple[int, int, int]], chars: int) -> None:
    lengths = AnswerLengths(50.0)
    for sample in samples:
        lengths.learn(*sample)
    assert 1 <= lengths.prompt(chars) < math.inf
    assert 0 <= lengths.output < math.inf


class Wall:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def report(at_ms: int = NOW_MS, arrived: float = 0, waits: float = 0, **more: int) -> DemandReport:
    waiting = (WaitingRecords(at_ms + 30_000, Tokens(waits, waits, waits)),) if waits else ()
    return DemandReport(at_ms, waiting, arrived=Tokens(arrived, arrived, arrived), **more)


def test_subtask_demands_add_up_and_arrivals_count_once() -> None:
    reports, wall = {"a": report(arrived=5, waits=2, running=1), "b": report(arrived=7, running=2)}, Wall()
    stream = StreamDemand(lambda: reports, wall, mix=ClassMix([USUAL]))
    first = stream.take(0.0)
    assert (first.running, first.backlog) == (3, (Backlog(30.0, Tokens(2, 2, 2)),))
    assert dict(first.arrived)["default"].requests == 12
    assert dict(stream.take(1.0).arrived)["default"].requests == 0
    # A restarted subtask counts from zero; the other continues.
    reports = {"c": report(arrived=1), "b": report(arrived=9)}
    assert dict(stream.take(2.0).arrived)["default"].requests == 3


def test_stopped_reports_grow_stale_and_stop_counting() -> None:
    reports, wall = {"a": report(arrived=5, waits=2)}, Wall()
    stream = StreamDemand(lambda: reports, wall, mix=ClassMix([USUAL]))
    assert stream.take(0.0).age_s == 0
    wall.now_ms += 60_000
    found = stream.take(60.0)
    assert (found.age_s, found.silent, found.backlog) == (60.0, 1, (Backlog(-30.0, Tokens(2, 2, 2)),))
    wall.now_ms += 1_000
    found = stream.take(61.0)
    assert (found.age_s, found.silent, found.backlog) == (61.0, 0, ())
    assert StreamDemand(dict, wall, mix=ClassMix([USUAL])).take(0.0).age_s == math.inf


@given(
    subtasks=st.lists(st.tuples(st.floats(0, 2 * GONE_S), st.integers(0, 50), st.integers(0, 50)), max_size=6)
)
def test_last_report_of_a_subtask_counts_until_it_has_ended(
    subtasks: list[tuple[float, int, int]],
) -> None:
    reports = {
        str(number): report(NOW_MS - round(age_s * 1000), arrived=waits, waits=waits, running=running)
        for number, (age_s, running, waits) in enumerate(subtasks)
    }
    here = [one for one in subtasks if round(one[0] * 1000) <= GONE_S * 1000]
    fresh = [one for one in here if round(one[0] * 1000) <= FRESH_S * 1000]
    stream = StreamDemand(lambda: reports, Wall(), mix=ClassMix([USUAL]))
    found = stream.take(0.0)
    assert found.running == sum(running for _, running, _ in here)
    assert sum(part.tokens.requests for part in found.backlog) == sum(waits for *_, waits in here)
    assert found.silent == len(here) - len(fresh)
    # Those that end cleanly take their reports along.
    reports = {}
    found = stream.take(1.0)
    assert (found.running, found.backlog, found.silent) == (0, (), 0)


def test_arrivals_during_a_subtasks_silence_count_once() -> None:
    reports, wall = {"a": report(arrived=5), "b": report(arrived=5)}, Wall()
    stream = StreamDemand(lambda: reports, wall, mix=ClassMix([USUAL]))
    came = []
    for age_s, arrived in ((0, 5), (20, 5), (40, 5), (0, 9), (0, 9)):
        wall.now_ms += 20_000
        reports = {
            "a": report(wall.now_ms, arrived=5),
            "b": report(wall.now_ms - age_s * 1000, arrived=arrived),
        }
        came.append(dict(stream.take(0.0).arrived)["default"].requests)
    assert came == [10, 0, 0, 4, 0]


def test_no_speed_is_learned_while_a_subtask_is_silent() -> None:
    """Its waiting requests may not be sent, and its finished work is reported all at once later."""
    speed, wall, factors = LearnedSpeed(ReplicaSpeed(0.001, 0.01)), Wall(), list[float]()
    reports: dict[str, DemandReport] = {}
    stream = StreamDemand(lambda: reports, wall, mix=ClassMix([USUAL]), speed=speed, ready=lambda: 1)
    hung: DemandReport | None = None
    for second in range(0, 120, 2):
        wall.now_ms = NOW_MS + second * 1000
        waiting = (WaitingRecords(wall.now_ms, Tokens(9, 900, 900)),)
        one = DemandReport(wall.now_ms, waiting, done=Tokens(second, 100 * second, 100 * second), full=True)
        # It works at the same speed all the while, and reports nothing from 40 s to 80 s.
        hung = hung or one if 40 <= second < 80 else None
        reports = {"a": DemandReport(wall.now_ms), "b": hung or one}
        stream.take(float(second))
        factors.append(speed.factor)
    assert factors[19] == pytest.approx(0.91, rel=0.01)
    assert set(factors[26:41]) == {factors[26]}, "from 52 s on, until two reports follow each other again"
    assert factors[-1] == pytest.approx(factors[19], rel=0.2)


def test_initial_topic_backlog_is_due_one_slo_after_the_start() -> None:
    waits = Tokens(100, 1000, 500)
    queued: Tokens | None = waits
    reports = {"a": report()}
    stream = StreamDemand(lambda: reports, Wall(), mix=ClassMix([USUAL]), queued=lambda: queued)

    def came(now_s: float) -> Tokens:
        return dict(stream.take(now_s).arrived)["default"]

    first = stream.take(0.0)
    assert first.backlog == (Backlog(60.0, waits),)
    assert dict(first.arrived)["default"] == Tokens()
    # Ten of them are read: nothing new has come.
    queued, reports = Tokens(90, 900, 450), {"a": DemandReport(NOW_MS, arrived=Tokens(10, 100, 50))}
    assert came(1.0) == Tokens()
    # For a while it is not known what waits: neither have all left, nor have those come that were there.
    queued = None
    assert (stream.take(2.0).backlog, came(2.5)) == ((), Tokens())
    queued = Tokens(95, 950, 475)
    assert came(3.0) == Tokens(5, 50, 25)


def test_topic_records_of_an_idle_job_do_not_wait() -> None:
    wall, queued, reports = Wall(), Tokens(4, 40, 20), {"a": report()}
    stream = StreamDemand(lambda: reports, wall, mix=ClassMix([USUAL]), queued=lambda: queued)

    def waits(after_s: float, **more: int) -> tuple[float, float]:
        nonlocal reports
        wall.now_ms += round(after_s * 1000)
        reports = {"a": report(wall.now_ms, **more)}
        found = stream.take((wall.now_ms - NOW_MS) / 1000)
        return sum(part.tokens.requests for part in found.backlog), dict(found.arrived)["default"].requests

    # While one of them is at a replica, the rest may wait for it.
    assert [waits(40.0, running=1) for _ in range(3)] == [(4, 0)] * 3
    assert [waits(40.0), waits(40.0), waits(40.0)] == [(4, 0), (0, 0), (0, 0)]
    # One more has arrived; the waiting ones had arrived before.
    queued = Tokens(5, 50, 25)
    assert waits(5.0) == (1, 1)


def test_uncounted_unread_records_are_backlog() -> None:
    """Kafka was away: neither was a record read, nor was it known what waits."""
    wall, reports = Wall(), {"a": report()}
    queued: Tokens | None = Tokens(4, 40, 20)
    stream = StreamDemand(lambda: reports, wall, mix=ClassMix([USUAL]), queued=lambda: queued)

    def waits(now_s: int) -> float:
        nonlocal reports
        wall.now_ms = NOW_MS + now_s * 1000
        reports = {"a": report(wall.now_ms)}
        return sum(part.tokens.requests for part in stream.take(now_s).backlog)

    assert (waits(0), waits(30)) == (4, 4)
    queued = None
    assert (waits(40), waits(300)) == (0, 0)
    queued = Tokens(4, 40, 20)
    assert (waits(310), waits(360), waits(380)) == (4, 4, 0)


def test_topic_backlog_is_split_among_classes() -> None:
    queued, reports = Tokens(40, 4000, 400), {"a": report()}
    stream = StreamDemand(lambda: reports, Wall(), mix=ClassMix((USUAL, ALARM)), queued=lambda: queued)
    # Before anything is known, all is of the default class.
    assert stream.take(0.0).backlog == (Backlog(60.0, queued),)
    # Of a hundred requests that came a quarter are alarms, with half of the tokens.
    by_class = {"default": Tokens(75, 5000, 750), "alarm": Tokens(25, 5000, 250)}
    reports = {"a": DemandReport(NOW_MS, arrived=Tokens(100, 10_000, 1000), by_class=by_class)}
    found = stream.take(1.0)
    assert found.arrived == (("default", by_class["default"]), ("alarm", by_class["alarm"]))
    alarm, usual = found.backlog
    assert (alarm.due_in_s, usual.due_in_s) == (5.0, 60.0)
    assert (alarm.tokens, usual.tokens) == (Tokens(10, 2000, 100), Tokens(30, 2000, 300))


def test_restored_requests_show_the_classes_of_a_topics_backlog() -> None:
    meter = DemandMeter(10.0)
    for number in range(64):
        meter.accept(number, str(number), 40, NOW_MS, ARCHIVE, again=True)
    reports = {"a": meter.report(NOW_MS, sent=())}
    mix = ClassMix((USUAL, ALARM, ARCHIVE))
    stream = StreamDemand(lambda: reports, Wall(), mix=mix, queued=lambda: Tokens(20_000, 2e5, 2e5))
    assert min(part.due_in_s for part in stream.take(0.0).backlog) > 3000


def test_arrivals_keep_their_classes_if_all_are_known() -> None:
    reports = {"a": report()}
    stream = StreamDemand(lambda: reports, Wall(), mix=ClassMix((USUAL, ALARM)))
    total = Tokens()
    for step in range(1, 4):
        name = "alarm" if step == 3 else "default"
        total += Tokens(1000, 10, 10)
        by_class = {**reports["a"].by_class}
        by_class[name] = by_class.get(name, Tokens()) + Tokens(1000, 10, 10)
        reports = {"a": DemandReport(NOW_MS, arrived=total, by_class=by_class)}
        came = dict(stream.take(float(step)).arrived)
        assert {of: tokens.requests for of, tokens in came.items() if tokens.requests} == {name: 1000}


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(1, 9)), max_size=400))
def test_parts_due_together_merge_and_none_is_due_later(
    parts: list[tuple[float, int]],
) -> None:
    given_ = [Backlog(due_s, Tokens(count)) for due_s, count in parts]
    found = merged(given_)
    assert sum(part.tokens.requests for part in found) == sum(count for _, count in parts)
    assert list(found) == sorted(found, key=lambda part: part.due_in_s)
    for due_s in (0.0, 1.0, 60.0, 3600.0):
        before = sum(count for at_s, count in parts if at_s <= due_s)
        assert sum(part.tokens.requests for part in found if part.due_in_s <= due_s) >= before
        near = sum(count for at_s, count in parts if at_s <= due_s * 1.05)
        assert sum(part.tokens.requests for part in found if part.due_in_s <= due_s) <= near
    assert sum(1 for part in found if part.due_in_s <= 0) <= 1
    assert len([part for part in found if part.due_in_s > 1]) <= 300


def test_records_that_arrive_late_after_leaving_a_topic_count_once() -> None:
    queued, reports = Tokens(100, 1000, 500), {"a": report()}
    stream = StreamDemand(lambda: reports, Wall(), mix=ClassMix([USUAL]), queued=lambda: queued)

    def came(now_s: float) -> Tokens:
        return dict(stream.take(now_s).arrived)["default"]

    assert came(0.0) == Tokens()
    # The topic is counted at other moments than the subtasks report: ten have left it, and are on their way.
    queued = Tokens(90, 900, 450)
    assert came(1.0) == Tokens()
    reports = {"a": DemandReport(NOW_MS, arrived=Tokens(10, 100, 50))}
    assert came(2.0) == Tokens()
    # The other way round they seem to have come, and are taken off what comes next.
    reports = {"a": DemandReport(NOW_MS, arrived=Tokens(30, 300, 150))}
    assert came(3.0).requests == 20
    queued = Tokens(70, 700, 350)
    assert came(4.0) == Tokens()
    queued = Tokens(95, 950, 475)
    assert came(5.0) == Tokens(5, 50, 25)


def test_lost_topic_records_do_not_hide_later_arrivals() -> None:
    queued, called = Tokens(100_000, 100_000, 100_000), 0
    reports, wall = {"a": report()}, Wall()
    stream = StreamDemand(lambda: reports, wall, mix=ClassMix([USUAL]), queued=lambda: queued)

    def came(second: int, calls: int) -> float:
        nonlocal called, reports
        called += calls
        wall.now_ms = NOW_MS + second * 1000
        reports = {"a": report(wall.now_ms, arrived=called)}
        return dict(stream.take(float(second)).arrived)["default"].requests

    came(0, 0)
    for second in range(5, 505, 5):
        queued = Tokens(*[100_000 - 200 * second] * 3)
        assert came(second, 100) == 0
    queued = Tokens()
    later = [came(second, 3) for second in range(505, 605, 5)]
    # For a minute they may be those that have left.
    assert later == [0] * 12 + [3] * 8


def test_records_may_arrive_long_after_leaving_a_topic() -> None:
    queued, reports = Tokens(10, 10, 10), {"a": report()}
    stream = StreamDemand(lambda: reports, Wall(), mix=ClassMix([USUAL]), queued=lambda: queued)
    stream.take(0.0)
    queued = Tokens()
    assert dict(stream.take(1.0).arrived)["default"] == Tokens()
    reports = {"a": report(arrived=10)}
    assert dict(stream.take(1.0 + 3 * GONE_S).arrived)["default"] == Tokens()


def test_underestimated_topic_records_count_once() -> None:
    queued = Tokens(100, 0, 6400)
    stream = StreamDemand(lambda: {"a": report()}, Wall(), mix=ClassMix([USUAL]), queued=lambda: queued)
    stream.take(0.0)
    queued = Tokens(100, 90_000, 20_000)
    found = stream.take(1.0)
    assert found.backlog == (Backlog(60.0, queued),)
    assert dict(found.arrived)["default"] == Tokens()


def test_no_speed_is_learned_without_subtask_reports() -> None:
    speed, wall, done, factors = LearnedSpeed(ReplicaSpeed(0.001, 0.01)), Wall(), 0, list[float]()
    reports: dict[str, DemandReport] = {}
    stream = StreamDemand(
        lambda: reports,
        wall,
        mix=ClassMix([USUAL]),
        speed=speed,
        ready=lambda: 1,
        queued=lambda: Tokens(9, 900, 900),
    )
    for second in range(0, 180, 2):
        wall.now_ms = NOW_MS + second * 1000
        if second < 60 or second >= 160:
            done += 2
            total = Tokens(done, 100 * done, 100 * done)
            reports = {"a": DemandReport(wall.now_ms, done=total, full=True)}
        stream.take(float(second))
        factors.append(speed.factor)
    assert factors[20] == pytest.approx(0.91, rel=0.01)
    # From the last report on it is fresh for ten seconds; what was done until the next one is not known.
    assert set(factors[34:81]) == {factors[34]}
    assert factors[-1] != factors[34]


def test_slow_pipeline_does_not_make_its_replicas_look_slow() -> None:
    """Events wait all the while, and from 60 s to 120 s the replicas have room for more."""
    speed, wall, done, factors = LearnedSpeed(ReplicaSpeed(0.001, 0.01)), Wall(), 0, list[float]()
    reports: dict[str, DemandReport] = {}
    queued = Tokens(9, 900, 900)
    stream = StreamDemand(
        lambda: reports, wall, mix=ClassMix([USUAL]), speed=speed, ready=lambda: 2, queued=lambda: queued
    )
    for second in range(0, 180, 2):
        wall.now_ms = NOW_MS + second * 1000
        has_room = 60 <= second < 120
        done += 1 if has_room else 4
        waiting, total = (WaitingRecords(wall.now_ms, queued),), Tokens(done, 100 * done, 100 * done)
        others = DemandReport(wall.now_ms, waiting)
        reports = {"a": DemandReport(wall.now_ms, waiting, done=total, full=not has_room), "b": others}
        stream.take(float(second))
        factors.append(speed.factor)
    assert factors[29] == pytest.approx(0.91, rel=0.01)
    assert set(factors[30:61]) == {factors[29]}
    assert factors[-1] == pytest.approx(0.91, rel=0.01)


def test_reports_are_exchanged_by_files_and_other_files_are_ignored(tmp_path: Path) -> None:
    whole = DemandReport(
        NOW_MS, (WaitingRecords(NOW_MS, Tokens(1, 2, 3)),), 4, 5.0, 0.5, Tokens(6, 7, 8),
        {"alarm": Tokens(1, 1, 1)}, Tokens(9, 9, 9), 3,
        {"http://a:1": 2}, 1, True,
    )  # fmt: skip
    (tmp_path / f"a{SUFFIX}").write_bytes(encode_demand(whole))
    for number, wrong in enumerate((b"", b"{", b"[]", b'{"at_ms": "x"}', b" " * (2 << 20))):
        (tmp_path / f"{number}{SUFFIX}").write_bytes(wrong)
    assert read_reports(tmp_path) == {f"a{SUFFIX}": whole}


def test_report_file_name_identifies_the_subtask() -> None:
    assert process_of(report_name("7a", 4711, "8f3a"), "7a") == 4711
    assert process_of(report_name("8a", 4711, "8f3a"), "7a") is None
    assert [process_of(name, "7") for name in (f"a{SUFFIX}", "", "7", "7-x-1", "7-²-1", "x-1-1")] == [
        None
    ] * 6


def test_speed_is_learned_while_requests_wait() -> None:
    speed = LearnedSpeed(ReplicaSpeed(0.001, 0.01))
    tokens = Tokens(1, 100, 90)
    assert speed.work_s(tokens) == pytest.approx(1.0)
    # Two replicas that boot a batch: no answers yet.
    speed.add(Tokens(), 30.0, busy=True)
    for _ in range(30):
        speed.add(Tokens(4, 400, 360), 2.0, busy=True)
    assert speed.work_s(tokens) == pytest.approx(0.5)
    # Idle replicas do not show their speed, unless they do more than was assumed.
    for _ in range(30):
        speed.add(Tokens(1, 100, 90), 2.0, busy=False)
    assert speed.work_s(tokens) == pytest.approx(0.5)
    for _ in range(300):
        speed.add(Tokens(8, 800, 720), 2.0, busy=False)
    assert speed.work_s(tokens) == pytest.approx(0.25, rel=0.1)


@given(
    samples=st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e4), st.booleans()), max_size=60
    )
)
def test_learned_speed_stays_within_its_bounds(
    samples: list[tuple[float, float, float, bool]],
) -> None:
    speed = LearnedSpeed(ReplicaSpeed(0.001, 0.01))
    for prompt, output, replicas_s, busy in samples:
        speed.add(Tokens(1, prompt, output), replicas_s, busy=busy)
        assert 1e-3 <= speed.factor <= 1e3


def test_published_replicas_count_as_starting_until_available() -> None:
    ready, published = [0], list[int]()
    owner = PublishedReplicas(lambda: ready[0], published.append, 60.0)
    assert owner.counts(0.0) == ReplicaCounts()
    owner.scale(2, 0.0)
    assert owner.counts(5.0).starting == (5.0, 5.0)
    owner.scale(3, 5.0)
    ready[0] = 1
    assert owner.counts(40.0) == ReplicaCounts(1, (40.0, 35.0), booted_s=(40.0,), asked=3)
    # One fewer is wanted: the last that was asked for is not awaited any more.
    owner.scale(2, 40.0)
    assert owner.counts(41.0).starting == (41.0,)
    owner.scale(0, 41.0)
    ready[0] = 0
    assert owner.counts(50.0) == ReplicaCounts(asked=0)
    assert published == [2, 3, 2, 0]
