from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.fleet.health import PATIENCE, Health, HealthRules, RequestProgress

RULES = HealthRules(failures=3, missed_checks=2, first_wait_s=1.0, max_wait_s=4.0, start_tokens=4)


def judge(health: Health, now_s: float) -> None:
    if health.suspicion is not None:
        health.confirm_suspicion(now_s)


def fail(health: Health, times: int, now_s: float = 0.0) -> None:
    for _ in range(times):
        health.failed(health.epoch, "503", now_s)
        judge(health, now_s)


@pytest.fixture
def health() -> Health:
    return Health(RULES)


def test_only_consecutive_failures_shut_a_replica(health: Health) -> None:
    fail(health, 2)
    health.succeeded(health.epoch, 0.0)
    fail(health, 2)
    assert health.room(1000)
    fail(health, 1)
    assert (health.state, health.why) == ("shut", "503")
    assert not health.room(0)


def test_passed_check_after_the_pause_admits_one_request(health: Health) -> None:
    fail(health, 3, now_s=10.0)
    health.probe_passed(10.5)
    assert not health.room(0), "it reported good health all the time"
    health.probe_passed(11.0)
    assert health.state == "up"
    assert health.room(0)
    assert not health.room(1)


def test_each_first_token_admits_one_more_until_fully_open(health: Health) -> None:
    fail(health, 3)
    health.probe_passed(1.0)
    limits = []
    for _ in range(4):
        limits.append(health.limit)
        health.succeeded(health.epoch, 2.0)
    assert limits == [1, 2, 3, 4]
    assert health.limit == math.inf
    assert health.why == ""


def test_pause_doubles_each_time_it_fails_again(health: Health) -> None:
    now_s, waits = 0.0, []
    fail(health, 3)
    for _ in range(5):
        waits.append(health.until_s - now_s)
        now_s = health.until_s
        health.probe_passed(now_s)
        fail(health, 3, now_s)
        assert health.state == "shut"
    assert waits == [1, 2, 4, 4, 4]


def test_pause_is_reset_after_a_full_recovery(health: Health) -> None:
    fail(health, 3)
    health.probe_passed(1.0)
    for _ in range(4):
        health.succeeded(health.epoch, 1.0)
    fail(health, 3, 5.0)
    assert health.until_s == 6.0


def test_requests_sent_before_it_was_shut_do_not_count(health: Health) -> None:
    old = health.epoch
    fail(health, 3)
    health.probe_passed(1.0)
    health.failed(old, "late", 1.1)
    assert health.state == "up"
    health.succeeded(old, 1.2)
    assert health.limit == 1


def test_missed_checks_shut_a_replica_without_answers(health: Health) -> None:
    health.check_failed("no answer", 0.0, 1.0)
    assert health.room(0)
    health.sign(1.5)
    health.check_failed("no answer", 1.2, 2.0)
    assert health.room(0), "it answered a request during the check"
    health.check_failed("no answer", 2.0, 3.0)
    assert health.state == "shut"


def test_after_a_failure_one_missed_check_is_enough(health: Health) -> None:
    fail(health, 1)
    health.check_failed("refused", 0.5, 0.6)
    assert health.state == "shut"


def test_retry_after_of_a_replica_is_respected(health: Health) -> None:
    health.failed(health.epoch, "429", 0.0, at_least_s=3.0)
    judge(health, 0.0)
    assert (health.state, health.until_s) == ("shut", 3.0)
    health.probe_passed(3.0)
    health.failed(health.epoch, "429", 3.0, at_least_s=3600.0)
    judge(health, 3.0)
    assert health.until_s == 3.0 + RULES.max_wait_s


@given(
    st.lists(st.tuples(st.sampled_from(("ok", "fail", "wish", "pass", "miss")), st.floats(0, 2)), max_size=80)
)
def test_healthy_replica_always_reopens(steps: list[tuple[str, float]]) -> None:
    health = Health(RULES)
    now_s = 0.0
    for what, after_s in steps:
        now_s += after_s
        if what == "ok":
            health.succeeded(health.epoch, now_s)
        elif what == "fail":
            fail(health, 1, now_s)
        elif what == "wish":
            health.failed(health.epoch, "x", now_s, at_least_s=1e6)
            judge(health, now_s)
        elif what == "pass":
            health.probe_passed(now_s)
        else:
            health.check_failed("x", now_s, now_s)
        assert (health.state == "shut") == (not health.room(0))
        assert health.until_s <= now_s + RULES.max_wait_s
    health.probe_passed(now_s + RULES.max_wait_s)
    assert health.room(0)
    for _ in range(RULES.start_tokens):
        health.succeeded(health.epoch, now_s + RULES.max_wait_s)
    assert health.limit == math.inf


def test_new_replica_opens_with_its_first_answer(health: Health) -> None:
    health.start_slowly()
    assert health.room(0)
    assert not health.room(1)
    health.succeeded(health.epoch, 1.0)
    assert health.limit == math.inf


def test_requests_of_one_source_never_shut_a_replica(health: Health) -> None:
    for _ in range(1000):
        health.failed(health.epoch, "cut off", 0.0, source="one key")
    assert health.suspicion is not None
    assert health.room(0)
    health.clear_suspicion()
    for _ in range(2):
        health.failed(health.epoch, "again", 1.0, source="one key")
    assert health.suspicion is None, "it takes three again"


def test_replica_with_retry_after_is_not_shut(health: Health) -> None:
    health.refused("429")
    assert health.suspicion is not None
    health.confirm_suspicion(1.0)
    assert (health.state, health.suspicion) == ("up", None)


def test_first_tokens_reopen_it_and_full_answers_do_not_count_twice() -> None:
    health = Health(HealthRules(start_tokens=5))
    health.shut("503", 0.0)
    health.probe_passed(1.0)
    for _ in range(4):
        health.succeeded(health.epoch, 1.0, complete=False)
        health.succeeded(health.epoch, 1.0, first=False)
    assert health.limit == 5.0
    health.succeeded(health.epoch, 1.0, complete=False)
    assert health.limit == math.inf


def test_only_replica_is_shut_after_many_more_failures(health: Health) -> None:
    for _ in range(RULES.failures_alone - 1):
        health.failed(health.epoch, "500", 0.0, alone=True)
        judge(health, 0.0)
    assert health.state == "up"
    health.failed(health.epoch, "500", 0.0, alone=True)
    judge(health, 0.0)
    assert health.state == "shut"


LIMIT_S = 60.0


class Asked:
    def __init__(self, progress: RequestProgress, sent_s: float = 0.0) -> None:
        self.timeout_s = LIMIT_S
        self.epoch = 0
        self.sent_s = self.moved_s = sent_s
        self.overtaken_s = math.nan
        self.ignore_silence = False
        self.aside = False
        self.begun = False
        self._progress = progress
        progress.sent(self)

    def set_aside(self) -> None:
        self.aside = True

    def begin(self, now_s: float) -> None:
        self.begun = True
        self._progress.began(self, now_s)

    def overdue(self, now_s: float, here_since_s: float = -math.inf) -> tuple[float, bool]:
        return self._progress.overdue(self, begun=self.begun, now_s=now_s, here_since_s=here_since_s)


@pytest.fixture
def progress() -> RequestProgress:
    return RequestProgress()


def test_queued_request_is_not_late_while_earlier_ones_progress(progress: RequestProgress) -> None:
    requests = [Asked(progress) for _ in range(20)]
    for turn, request in enumerate(requests[:-1]):
        request.begin(50.0 * (turn + 1))
    assert requests[-1].overdue(50.0 * 19 + 59.0) == (0.0, False)


def test_replica_without_any_progress_hangs(progress: RequestProgress) -> None:
    request = Asked(progress)
    assert request.overdue(60.0) == (0.0, False)
    assert request.overdue(61.0) == (61.0, True)


def test_overtaken_request_could_have_started_at_that_time(progress: RequestProgress) -> None:
    first, second = Asked(progress), Asked(progress, 1.0)
    second.begin(10.0)
    assert first.aside
    for now_s in range(20, 70, 10):
        progress.continued(second, float(now_s))
    assert first.overdue(70.0) == (0.0, False)
    assert first.overdue(71.0) == (61.0, False), "it alone, though the replica works"


def test_gap_between_tokens_may_double(progress: RequestProgress) -> None:
    request = Asked(progress)
    request.begin(59.0)
    assert request.overdue(118.0) == (0.0, False)
    progress.continued(request, 118.0)
    assert request.overdue(177.0) == (0.0, False), "an answer that continues is never late"


def test_time_limits_follow_observed_answer_times(progress: RequestProgress) -> None:
    slow = Asked(progress)
    slow.begin(50.0)
    progress.ended(slow)
    other = Asked(progress, 50.0)
    assert other.overdue(50.0 + PATIENCE * 50.0) == (0.0, False)
    assert other.overdue(51.0 + PATIENCE * 50.0)[1]


def test_time_limit_doubles_after_an_abandoned_request(progress: RequestProgress) -> None:
    assert Asked(progress).overdue(61.0)[0]
    after = Asked(progress, 61.0)
    assert after.overdue(61.0 + 121.0) == (0.0, False)
    assert after.overdue(61.0 + 123.0)[0]


def test_pauses_of_this_process_do_not_count(progress: RequestProgress) -> None:
    request = Asked(progress)
    assert request.overdue(500.0, here_since_s=450.0) == (0.0, False)


def test_ignored_silence_is_not_late(progress: RequestProgress) -> None:
    request = Asked(progress)
    request.ignore_silence = True
    assert request.overdue(1e6) == (0.0, False)


def test_unusually_long_waits_do_not_block_others(progress: RequestProgress) -> None:
    quick = Asked(progress)
    quick.begin(0.5)
    progress.ended(quick)
    stuck, fresh = Asked(progress, 1.0), Asked(progress, 2.5)
    progress.set_aside_stale(2.9)
    assert not stuck.aside
    progress.set_aside_stale(3.1)
    assert stuck.aside
    assert not fresh.aside
