"""One holder at a time, on a real server."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from tests.harness.clock import ManualClock

from forebay.clients.s3.client import Changed, S3Client, StoreAway, StoreRefused
from forebay.clients.s3.location import S3Path
from forebay.clients.s3.lock import HOLD_S, LEASE_S, LOOK_S, PATIENCE_S, Fenced, Lock, encode_lock, held_lock
from forebay.errors import SettingError
from forebay.testing.waiting import wait_until

pytestmark = pytest.mark.xdist_group("object-store")


def left(store: S3Path, **changes: Any) -> None:
    """A lock that was left by another run."""
    lock = Lock("p", where="a machine that is gone", **changes)
    S3Client(store.bucket).put((store / "lock").key, encode_lock(lock), replacing=None)


def test_a_lock_that_was_let_go_is_taken_at_once(store: S3Path) -> None:
    clock = ManualClock()
    for _ in range(2):
        with held_lock(store / "lock", "p", clock=clock, sleep=clock.pause) as hold:
            hold.check()
            assert not hold.unfenced
    assert clock.slept_s == []


def test_a_second_run_is_refused_while_the_first_lives(store: S3Path) -> None:
    with (
        held_lock(store / "lock", "p") as hold,
        pytest.raises(SettingError, match=r"'p' is running already .*process \d+.*, with its state in s3://"),
        held_lock(store / "lock", "p"),
    ):
        pass
    assert not hold.lost


def test_a_dead_holder_is_waited_for_and_taken_over(store: S3Path) -> None:
    left(store)
    clock = ManualClock()
    with held_lock(store / "lock", "p", clock=clock, sleep=clock.pause) as hold:
        assert hold.unfenced
    assert sum(clock.slept_s) == LEASE_S


def test_a_holder_learns_of_a_takeover_at_renewal_and_releases_nothing(store: S3Path) -> None:
    with held_lock(store / "lock", "p") as hold:
        client = S3Client(store.bucket)
        etag = take(store)
        wait_until(lambda: hold.lost)
        with pytest.raises(Fenced, match="another run of pipeline 'p' has taken over its state"):
            hold.check()
    after = client.get((store / "lock").key)
    assert after is not None
    assert after.etag == etag


def test_an_outage_loses_no_lock(store: S3Path, store_server: Any) -> None:
    with held_lock(store / "lock", "p") as hold:
        store_server.link.cut()
        assert not hold.renew()
        assert not hold.lost
        store_server.link.restore()
        assert hold.renew()


def test_what_keeps_a_lock_from_being_renewed_is_reported(store: S3Path, store_server: Any) -> None:
    """At once if the server refuses, and after some seconds if it does not answer."""
    clock = ManualClock()
    with held_lock(store / "lock", "p", uptime_s=clock.monotonic_s) as hold:
        assert hold.trouble == ""
        store_server.link.refuse(400, "ExpiredToken")
        assert hold.renew()
        assert f"bucket {store.bucket} " in hold.trouble
        assert hold.trouble.endswith("the keys have expired (ExpiredToken); renew them")
        store_server.link.restore()
        assert hold.renew()
        assert hold.trouble == ""
        store_server.link.cut()
        assert not hold.renew()
        assert hold.trouble == ""
        clock.advance(HOLD_S)
        assert not hold.renew()
        assert "did not answer" in hold.trouble
        store_server.link.restore()
        wait_until(lambda: hold.trouble == "")
        assert not hold.lost


def test_an_unconfirmed_takeover_is_recognised_as_ones_own(
    store: S3Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(store)
    put, made = S3Client.put, list[str]()

    def unconfirmed(self: S3Client, key: str, content: bytes, *, replacing: str | None) -> str:
        made.append(put(self, key, content, replacing=replacing))
        if len(made) == 1:
            raise StoreAway("the server did not answer")
        return made[-1]

    monkeypatch.setattr(S3Client, "put", unconfirmed)
    clock = ManualClock()
    with held_lock(store / "lock", "p", clock=clock, sleep=clock.pause) as hold:
        assert hold.unfenced
        wait_until(lambda: len(made) > 1)
        hold.check()
    assert sum(clock.slept_s) == LEASE_S + LOOK_S


def test_an_unexpected_error_of_a_renewal_is_reported_and_retried(
    store: S3Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(*arguments: Any, **more: Any) -> str:
        raise ZeroDivisionError("a defect")

    with held_lock(store / "lock", "p") as hold:
        with monkeypatch.context() as patched:
            patched.setattr(S3Client, "put", odd)
            wait_until(lambda: hold.trouble.endswith("lock cannot be renewed: ZeroDivisionError: a defect"))
        wait_until(lambda: hold.trouble == "")
        hold.check()


def test_the_state_of_another_pipeline_is_left_alone(store: S3Path) -> None:
    left(store, released=True)
    with (
        pytest.raises(SettingError, match="holds the state of pipeline 'p', not of 'q'; name another prefix"),
        held_lock(store / "lock", "q"),
    ):
        pass


def test_what_is_no_lock_is_left_alone(store: S3Path) -> None:
    S3Client(store.bucket).put((store / "lock").key, b"a diary", replacing=None)
    with pytest.raises(SettingError, match="is not the lock of a pipeline"), held_lock(store / "lock", "p"):
        pass


def test_a_server_that_does_not_answer_is_given_up(store: S3Path, store_server: Any) -> None:
    store_server.link.cut()
    clock = ManualClock()
    with (
        pytest.raises(StoreAway, match="did not answer"),
        held_lock(store / "lock", "p", clock=clock, sleep=clock.pause),
    ):
        pass
    assert sum(clock.slept_s) >= PATIENCE_S


def test_a_run_that_may_read_and_not_write_learns_that_it_lost(
    store: S3Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: S3Client, key: str, content: bytes, *, replacing: str | None) -> str:
        raise StoreRefused("these keys may not write")

    with held_lock(store / "lock", "p") as hold, monkeypatch.context() as patched:
        patched.setattr(S3Client, "put", refused)
        assert hold.renew()
        assert (hold.lost, hold.trouble) == (False, "these keys may not write")
        patched.undo()
        take(store)
        patched.setattr(S3Client, "put", refused)
        hold.renew()
        assert hold.lost


def take(store: S3Path) -> str:
    """Take over the lock of a silent holder; returns the new ETag."""
    client = S3Client(store.bucket)
    etags: list[str] = []

    def taken() -> bool:
        found = client.get((store / "lock").key)
        assert found is not None
        with suppress(Changed):
            etags.append(client.put((store / "lock").key, encode_lock(Lock("p")), replacing=found.etag))
        return bool(etags)

    wait_until(taken)
    return etags[0]


@pytest.mark.parametrize("released", [False, True])
def test_a_renewal_whose_answer_was_lost_costs_nothing(
    store: S3Path, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    """Neither the next renewal nor the release mistakes it for another run's."""
    put = S3Client.put

    def unanswered(self: S3Client, key: str, content: bytes, *, replacing: str | None) -> str:
        put(self, key, content, replacing=replacing)
        raise StoreAway("no answer")

    with held_lock(store / "lock", "p") as hold:
        with monkeypatch.context() as patched:
            patched.setattr(S3Client, "put", unanswered)
            assert not hold.renew()
        if not released:
            assert hold.renew()
            hold.check()
    assert not hold.lost
    clock = ManualClock()
    with held_lock(store / "lock", "p", clock=clock, sleep=clock.pause):
        assert clock.slept_s == [], "it was released"


def test_a_failed_takeover_leaves_the_warning(store: S3Path) -> None:
    """A run that took over and ended before it fenced the silent one's job records that in the lock."""
    left(store)
    clock = ManualClock()
    with held_lock(store / "lock", "p", clock=clock, sleep=clock.pause):
        pass
    with held_lock(store / "lock", "p") as hold:
        assert hold.unfenced
        hold.unfenced = False
    with held_lock(store / "lock", "p") as hold:
        assert not hold.unfenced


def test_renewals_are_reported_with_when_they_were_sent(store: S3Path, store_server: Any) -> None:
    clock = ManualClock()
    reported: list[float] = []
    with held_lock(store / "lock", "p", uptime_s=clock.monotonic_s) as hold:
        hold.report_renewals(reported.append)
        began_s = clock.monotonic_s()
        clock.advance(1.0)
        assert hold.renew()
        store_server.link.cut()
        clock.advance(1.0)
        assert not hold.renew()
        store_server.link.restore()
    assert {began_s + HOLD_S, began_s + 1.0 + HOLD_S} <= set(reported)
    assert began_s + 2.0 + HOLD_S not in reported[:2]
