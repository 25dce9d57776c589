"""Who takes a lease and when, whatever dies, pauses or is disconnected in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from forebay.clients.s3.lock import (
    BEAT_S,
    BEAT_TIMEOUT_S,
    GAP_S,
    HOLD_S,
    LEASE_S,
    RETRY_S,
    Claim,
    Lock,
    Seen,
    decode_lock,
    encode_lock,
)

RENEWED_AGAIN_S = BEAT_TIMEOUT_S + RETRY_S
"""An unanswered renewal is abandoned after the first of these times, and repeated after the second."""


def seen(etag: str = "1", *, released: bool = False) -> Seen:
    return Seen(etag, released)


def test_nobodys_lease_is_taken_at_once() -> None:
    assert Claim().look(None, 0.0) == "take"
    assert Claim().look(seen(released=True), 0.0) == "take"


def test_one_that_is_renewed_is_refused() -> None:
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


def test_one_whose_holder_is_silent_is_taken_after_a_while() -> None:
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
def test_a_lock_is_read_as_it_was_written(lock: Lock) -> None:
    assert decode_lock(encode_lock(lock)) == lock
    assert decode_lock(encode_lock(lock.renewed())) != lock


@given(st.binary(max_size=80) | st.sampled_from([b"null", b"[]", b'{"pipeline": 1}', b"[" * 4000]))
def test_what_is_no_lock_is_rejected(content: bytes) -> None:
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
