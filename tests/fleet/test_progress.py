"""When a request of a replica is overdue, and when the replica hangs."""

from __future__ import annotations

import math

from forebay.fleet.progress import PATIENCE, RequestProgress

LIMIT_S = 60.0


class Asked:
    """A request at the replica."""

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


def test_while_the_replica_works_on_those_before_it_none_is_late() -> None:
    progress = RequestProgress()
    requests = [Asked(progress) for _ in range(20)]
    for turn, request in enumerate(requests[:-1]):
        request.begin(50.0 * (turn + 1))
    assert requests[-1].overdue(50.0 * 19 + 59.0) == (0.0, False)


def test_where_nothing_moves_at_all_the_replica_hangs() -> None:
    progress = RequestProgress()
    request = Asked(progress)
    assert request.overdue(60.0) == (0.0, False)
    assert request.overdue(61.0) == (61.0, True)


def test_one_that_was_overtaken_could_have_begun_then() -> None:
    progress = RequestProgress()
    first, second = Asked(progress), Asked(progress, 1.0)
    second.begin(10.0)
    assert first.aside
    for now_s in range(20, 70, 10):
        progress.continued(second, float(now_s))
    assert first.overdue(70.0) == (0.0, False)
    assert first.overdue(71.0) == (61.0, False), "it alone, though the replica works"


def test_between_tokens_there_may_pass_as_long_again() -> None:
    progress = RequestProgress()
    request = Asked(progress)
    request.begin(59.0)
    assert request.overdue(118.0) == (0.0, False)
    progress.continued(request, 118.0)
    assert request.overdue(177.0) == (0.0, False), "an answer that continues is never late"


def test_limits_follow_what_answers_were_seen_to_take() -> None:
    progress = RequestProgress()
    slow = Asked(progress)
    slow.begin(50.0)
    progress.ended(slow)
    other = Asked(progress, 50.0)
    assert other.overdue(50.0 + PATIENCE * 50.0) == (0.0, False)
    assert other.overdue(51.0 + PATIENCE * 50.0)[1]


def test_what_was_given_up_gives_the_next_twice_as_long() -> None:
    progress = RequestProgress()
    assert Asked(progress).overdue(61.0)[0]
    after = Asked(progress, 61.0)
    assert after.overdue(61.0 + 121.0) == (0.0, False)
    assert after.overdue(61.0 + 123.0)[0]


def test_time_for_which_this_process_was_held_up_does_not_count() -> None:
    progress = RequestProgress()
    request = Asked(progress)
    assert request.overdue(500.0, here_since_s=450.0) == (0.0, False)


def test_silence_without_meaning_is_not_late() -> None:
    progress = RequestProgress()
    request = Asked(progress)
    request.ignore_silence = True
    assert request.overdue(1e6) == (0.0, False)


def test_those_that_wait_much_longer_than_any_did_do_not_keep_others_out() -> None:
    progress = RequestProgress()
    quick = Asked(progress)
    quick.begin(0.5)
    progress.ended(quick)
    stuck, fresh = Asked(progress, 1.0), Asked(progress, 2.5)
    progress.set_aside_stale(2.9)
    assert not stuck.aside
    progress.set_aside_stale(3.1)
    assert stuck.aside
    assert not fresh.aside
