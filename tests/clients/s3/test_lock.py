"""One holder at a time, on a real server."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.harness.clock import ManualClock

from forebay.clients.s3.client import Changed, S3Client, StoreAway, StoreRefused
from forebay.clients.s3.location import S3Path
from forebay.clients.s3.lock import (
    BEAT_S,
    BEAT_TIMEOUT_S,
    GAP_S,
    HOLD_S,
    LEASE_S,
    LOOK_S,
    PATIENCE_S,
    RETRY_S,
    Claim,
    Fenced,
    Lock,
    Seen,
    decode_lock,
    encode_lock,
    held_lock,
)
from forebay.errors import SettingError
from forebay.testing.waiting import wait_until

RENEWED_AGAIN_S = BEAT_TIMEOUT_S + RETRY_S
"""An unanswered renewal is abandoned after the first of these times, and repeated after the second."""


def seen(etag: str = "1", *, released: bool = False) -> Seen:
    return Seen(etag, released)


def test_free_lease_is_taken_at_once() -> None:
    assert Claim().look(None, 0.0) == "take"
    assert Claim().look(seen(released=True), 0.0) == "take"


def test_renewed_lease_is_not_taken() -> None:
    claim = Claim()
    assert claim.look(seen("1"), 0.0) == "wait"
    assert claim.look(seen("2"), 0.5) == "refuse"


def test_an_unwatched_renewal_does_not_prove_a_living_holder() -> None:
    claim = Claim()
    claim.look(seen("1"), 0.0)
    looks = [claim.look(seen("2"), 2 * GAP_S + at_s / 2) for at_s in range(int(2 * LEASE_S) + 1)]
    assert looks == ["wait"] * (len(looks) - 1) + ["take"]
    claim = Claim()
    claim.look(seen("1"), 0.0)
    assert [claim.look(seen(etag), at_s) for etag, at_s in (("2", 2 * GAP_S), ("3", 2 * GAP_S + 0.5))] == [
        "wait",
        "refuse",
    ]


def test_lease_of_a_silent_holder_is_taken_after_a_while() -> None:
    claim = Claim()
    looks = [claim.look(seen(), at_s / 2) for at_s in range(int(2 * LEASE_S) + 1)]
    assert looks == ["wait"] * (len(looks) - 1) + ["take"]
    assert BEAT_S + RENEWED_AGAIN_S < LEASE_S, "one renewal that is not answered loses nothing"
    assert HOLD_S < LEASE_S, "a holder stops relying on its lease before another run takes it"


@pytest.mark.parametrize("watched", [True, False])
def test_silence_in_an_outage_does_not_count(watched: bool) -> None:
    """Whether the candidate polled meanwhile or was paused itself."""
    claim = Claim()
    claim.look(seen(), 0.0)
    if watched:
        claim.unanswered()
        assert claim.look(seen(), 1.5) == "wait"
        assert claim.look(seen(), 3.0) == "wait"
    assert claim.look(seen(), 31.0) == "wait"
    assert claim.look(seen("2"), 31.5) == "refuse"


@given(
    st.builds(
        Lock,
        pipeline=st.text(max_size=20),
        where=st.text(max_size=20),
        beat=st.integers(0),
        released=st.booleans(),
        unfenced=st.booleans(),
    )
)
def test_lock_round_trip(lock: Lock) -> None:
    assert decode_lock(encode_lock(lock)) == lock
    assert decode_lock(encode_lock(lock.renewed())) != lock


@given(st.binary(max_size=80) | st.sampled_from([b"null", b"[]", b'{"pipeline": 1}', b"[" * 4000]))
def test_invalid_lock_is_rejected(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_lock(content)


STEP_S = 0.25


class Leases(RuleBasedStateMachine):
    """A server, a holder that renews, and a candidate for the lease; each may pause."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.up = True
        self.etag = self.held = 1
        self.written_s = 0.0
        self.alive = True
        self.paused = 0
        self.was_paused = False
        self.due_s = BEAT_S
        self.claim = Claim()
        self.stands = 0
        self.look_s = 0.0
        self.heard_s = 0.0
        """Time of the holder's last possible renewal."""

    def _step(self) -> None:
        self.now_s += STEP_S
        if self.alive and not self.paused and self.now_s >= self.due_s:
            if self.up:
                self._beat()
                self.due_s = self.now_s + BEAT_S
            else:
                self.due_s = self.now_s + RENEWED_AGAIN_S
        self.paused = max(0, self.paused - 1)
        if not self.stands and self.now_s >= self.look_s:
            self._look()
            self.look_s = self.now_s + 2 * STEP_S
        self.stands = max(0, self.stands - 1)

    def _beat(self) -> None:
        self.etag = self.held = self.etag + 1
        self.written_s = self.heard_s = self.now_s

    def _look(self) -> None:
        if not self.up:
            self.claim.unanswered()
            return
        found = Seen(str(self.etag), False)
        decision = self.claim.look(found, self.now_s)
        if decision == "refuse":
            assert self.alive or self.now_s - self.written_s < LEASE_S
            self.claim = Claim()
        if decision == "take":
            # A holder that lives, never paused and reaches the server like others is not taken for dead.
            assert not self.alive or self.was_paused
            assert self.now_s - self.heard_s >= LEASE_S
            # The candidate holds it from now on, and another takes its role.
            self.etag += 1000
            self.held, self.written_s, self.heard_s = self.etag, self.now_s, self.now_s
            self.alive, self.paused, self.was_paused = True, 0, False
            self.due_s, self.claim = self.now_s + BEAT_S, Claim()

    @rule(steps=st.integers(1, 40))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    @rule(steps=st.integers(1, 200))
    def outage(self, steps: int) -> None:
        self.up = False
        self.time_passes(steps)
        self.up = True
        # What follows closely is the same outage.
        self.time_passes(int((GAP_S + RENEWED_AGAIN_S) / STEP_S))

    @rule(steps=st.integers(1, 60))
    def who_wants_it_stands_still(self, steps: int) -> None:
        self.stands = steps

    @precondition(lambda self: self.alive)
    @rule(steps=st.integers(1, 60))
    def holder_stands_still(self, steps: int) -> None:
        self.paused, self.was_paused = steps, True

    @precondition(lambda self: self.alive)
    @rule()
    def holder_dies(self) -> None:
        self.alive, self.paused, self.stands, dead = False, 0, 0, self.held
        self.time_passes(int(2 * LEASE_S / STEP_S))
        assert self.held != dead, "a dead holder's lease is taken within two of its lengths"


TestLeases = Leases.TestCase


pytestmark = pytest.mark.xdist_group("object-store")


def left(store: S3Path, **changes: Any) -> None:
    """A lock that was left by another run."""
    lock = Lock("p", where="a machine that is gone", **changes)
    S3Client(store.bucket).put((store / "lock").key, encode_lock(lock), replacing=None)


def test_released_lock_is_taken_at_once(store: S3Path) -> None:
    clock = ManualClock()
    for _ in range(2):
        with held_lock(store / "lock", "p", clock=clock, sleep=clock.pause) as hold:
            hold.check()
            assert not hold.unfenced
    assert clock.slept_s == []


@pytest.mark.heavy
def test_a_second_run_is_refused_while_the_first_lives(store: S3Path) -> None:
    with (
        held_lock(store / "lock", "p") as hold,
        pytest.raises(SettingError, match=r"'p' is running already .*process \d+.*, with its state in s3://"),
        held_lock(store / "lock", "p"),
    ):
        pass
    assert not hold.lost


@pytest.mark.heavy
def test_a_dead_holder_is_waited_for_and_taken_over(store: S3Path) -> None:
    left(store)
    clock = ManualClock()
    with held_lock(store / "lock", "p", clock=clock, sleep=clock.pause) as hold:
        assert hold.unfenced
    assert sum(clock.slept_s) == LEASE_S


@pytest.mark.heavy
def test_takeover_is_noticed_at_renewal_and_nothing_is_released(store: S3Path) -> None:
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


@pytest.mark.heavy
def test_failed_renewal_is_reported(store: S3Path, store_server: Any) -> None:
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


@pytest.mark.heavy
def test_own_unconfirmed_takeover_is_recognised(store: S3Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.heavy
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


def test_state_of_another_pipeline_is_unchanged(store: S3Path) -> None:
    left(store, released=True)
    with (
        pytest.raises(SettingError, match="holds the state of pipeline 'p', not of 'q'; name another prefix"),
        held_lock(store / "lock", "q"),
    ):
        pass


def test_file_that_is_not_a_lock_is_unchanged(store: S3Path) -> None:
    S3Client(store.bucket).put((store / "lock").key, b"a diary", replacing=None)
    with pytest.raises(SettingError, match="is not the lock of a pipeline"), held_lock(store / "lock", "p"):
        pass


@pytest.mark.heavy
def test_silent_server_is_abandoned(store: S3Path, store_server: Any) -> None:
    store_server.link.cut()
    clock = ManualClock()
    with (
        pytest.raises(StoreAway, match="did not answer"),
        held_lock(store / "lock", "p", clock=clock, sleep=clock.pause),
    ):
        pass
    assert sum(clock.slept_s) >= PATIENCE_S


def test_read_only_run_notices_that_it_lost(store: S3Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.heavy
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


def test_renewals_are_reported_with_their_send_time(store: S3Path, store_server: Any) -> None:
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
