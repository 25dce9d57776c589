"""Limits of a key, by a clock that is passed in."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.keys import MAX_DAYS, Bucket, Caller, KeyEntry, KeyLimits, KeyRing, Usage
from forebay.gateway.refusal import Refusal

moments = st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 5)), max_size=60)


@given(rate=st.floats(0.1, 100), size=st.floats(1, 50), steps=moments)
def test_bucket_never_gives_more_than_it_received(
    rate: float, size: float, steps: list[tuple[float, float]]
) -> None:
    bucket = Bucket(rate, size, 0.0)
    now_s = given_s = taken = largest = 0.0
    for pause_s, amount in steps:
        now_s += pause_s
        if not bucket.take(amount, now_s):
            taken += amount
            largest = max(largest, amount)
            given_s = now_s
    assert taken <= size + rate * given_s + max(0.0, largest - size) + 1e-6


@given(rate=st.floats(0.1, 100), amount=st.floats(0.1, 100))
def test_bucket_is_sufficient_after_the_reported_wait(rate: float, amount: float) -> None:
    bucket = Bucket(rate, 10.0, 0.0)
    bucket.take(10.0, 0.0)
    wait_s = bucket.take(amount, 0.0)
    assert wait_s > 0
    assert bucket.take(amount, wait_s * 1.0001 + 1e-6) == 0.0


def test_without_a_rate_there_is_no_limit() -> None:
    assert Bucket(math.inf, 1.0, 0.0).take(1e9, 0.0) == 0.0


def test_requests_are_admitted_in_a_burst_and_then_at_the_rate() -> None:
    usage = Usage(KeyLimits(requests_per_s=2.0, burst=3), 0.0)
    for _ in range(3):
        with usage.request(0.0):
            pass
    with pytest.raises(Refusal) as caught, usage.request(0.0):
        pass
    assert (caught.value.status, caught.value.retry_after_s) == (429, pytest.approx(0.5))
    with usage.request(0.51):
        pass


def test_requests_in_flight_are_always_released() -> None:
    usage = Usage(KeyLimits(in_flight=2), 0.0)
    with ExitStack() as stack:
        stack.enter_context(usage.request(0.0))
        stack.enter_context(usage.request(0.0))
        with pytest.raises(Refusal), usage.request(0.0):
            pass
        assert usage.in_flight == 2
    with pytest.raises(KeyError), usage.request(0.0):
        raise KeyError
    assert usage.in_flight == 0


def test_tokens_are_limited_per_minute() -> None:
    usage = Usage(KeyLimits(tokens_per_min=600), 0.0)
    usage.tokens(600, 0.0)
    with pytest.raises(Refusal) as caught:
        usage.tokens(100, 0.0)
    assert caught.value.retry_after_s == pytest.approx(10.0)
    usage.tokens(100, 10.1)


def test_request_above_a_minutes_tokens_needs_a_full_bucket() -> None:
    usage = Usage(KeyLimits(tokens_per_min=600), 0.0)
    usage.tokens(1200, 0.0)
    with pytest.raises(Refusal):
        usage.tokens(1, 59.0)
    usage.tokens(1, 61.0)


def test_debt_of_a_key_is_at_most_a_minutes_tokens() -> None:
    usage = Usage(KeyLimits(tokens_per_min=600), 0.0)
    assert usage.tokens(1e300, 0.0) == 1200
    with pytest.raises(Refusal) as caught:
        usage.tokens(600, 0.0)
    assert caught.value.retry_after_s == pytest.approx(120.0)


def test_unused_tokens_are_returned_and_excess_is_charged() -> None:
    usage = Usage(KeyLimits(tokens_per_min=600), 0.0)
    usage.settle(usage.tokens(600, 0.0), 100)
    usage.settle(usage.tokens(500, 0.0), 560)
    with pytest.raises(Refusal) as caught:
        usage.tokens(1, 0.0)
    assert caught.value.retry_after_s == pytest.approx(6.1)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 200), st.integers(0, 1 << 100), st.booleans()), max_size=40),
)
def test_key_waits_two_minutes_at_most(
    steps: list[tuple[int, int, bool]],
) -> None:
    usage = Usage(KeyLimits(tokens_per_min=600), 0.0)
    waits_s: list[float] = []
    for amount, used, settled in steps:
        try:
            taken = usage.tokens(amount, 0.0)
        except Refusal as refusal:
            waits_s.append(refusal.retry_after_s or 0.0)
        else:
            if settled:
                usage.settle(taken, used)
    assert all(wait_s <= 120.0 for wait_s in waits_s)


RING = KeyRing([KeyEntry("a", "sk-a", KeyLimits()), KeyEntry("b", "sk-bé", KeyLimits())], 0.0)


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({b"authorization": b"Bearer sk-a"}, "a"),
        ({b"authorization": "bearer  sk-bé ".encode()}, "b"),
        ({b"x-api-key": b"sk-a"}, "a"),
        ({b"x-api-key": b"sk-a", b"authorization": b"Bearer of another service"}, "a"),
    ],
)
def test_valid_keys_are_accepted(headers: dict[bytes, bytes], name: str) -> None:
    assert RING.find(headers).name == name


@given(
    name=st.sampled_from([b"authorization", b"x-api-key"]),
    given=st.none() | st.binary(max_size=40) | st.binary(max_size=20).map(lambda key: b"Bearer " + key),
)
def test_everything_else_is_rejected(name: bytes, given: bytes | None) -> None:
    right = (b"sk-a", "sk-bé".encode())
    if given is not None and given.removeprefix(b"Bearer ").strip() in right:
        return
    with pytest.raises(Refusal) as caught:
        RING.find({} if given is None else {name: given})
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


def test_without_keys_every_client_is_anonymous() -> None:
    assert KeyRing((), 0.0).find({}).name == "anyone"


def test_key_never_appears_in_texts() -> None:
    caller = RING.find({b"authorization": b"Bearer sk-a"})
    assert "sk-a" not in repr(caller)
    assert b"sk-a" not in caller.digest
    for one in RING._callers:
        kept = [str(getattr(one, slot)) for slot in Caller.__slots__]
        assert not [value for value in kept for secret in ("sk-a", "sk-bé") if secret in value]


DAY_S = 86_400


def used(usage: Usage, tokens: float, wall_ms: int, *, taken: float | None = None) -> float:
    """Charge a request; returns the seconds to wait, 0 if it is let in."""
    try:
        charged = usage.tokens(tokens if taken is None else taken, 0.0, wall_ms)
    except Refusal as refusal:
        return refusal.retry_after_s or 0.0
    usage.settle(charged, tokens)
    return 0.0


def test_daily_tokens_are_renewed_each_day() -> None:
    usage = Usage(KeyLimits(tokens_per_day=100), 0.0)
    noon_ms = 20_000 * DAY_S * 1000 + DAY_S * 500
    assert [used(usage, 60, noon_ms) for _ in range(3)] == [0.0, 0.0, DAY_S / 2]
    assert used(usage, 60, noon_ms + DAY_S * 500 - 1) == 0.001
    assert used(usage, 60, noon_ms + DAY_S * 500) == 0.0


def test_clock_that_is_set_does_not_renew_a_days_tokens() -> None:
    usage = Usage(KeyLimits(tokens_per_day=100), 0.0)
    day_ms = DAY_S * 1000
    midnight_ms = 20_000 * day_ms
    assert used(usage, 100, midnight_ms) == 0.0
    assert used(usage, 100, midnight_ms - 1000) == 0.0
    for set_ms in (midnight_ms, midnight_ms - 1000, midnight_ms, midnight_ms + day_ms - 1):
        assert used(usage, 1, set_ms) > 0.0
    far_ms = midnight_ms + 400 * day_ms
    assert used(usage, 100, far_ms) == 0.0
    assert used(usage, 1, midnight_ms) > 0.0
    assert used(usage, 100, midnight_ms + day_ms) == 0.0


def test_tokens_of_few_days_are_kept() -> None:
    usage = Usage(KeyLimits(tokens_per_day=100), 0.0)
    assert [used(usage, 100, day * DAY_S * 1000) for day in range(40)] == [0.0] * 40
    assert len(usage._day._used) == MAX_DAYS


def test_unused_tokens_are_left_for_the_day() -> None:
    usage = Usage(KeyLimits(tokens_per_day=100), 0.0)
    assert [used(usage, 10, 0, taken=100_000) for _ in range(11)] == [0.0] * 10 + [float(DAY_S)]


def test_concurrent_requests_exceed_a_day_by_one_at_most() -> None:
    usage = Usage(KeyLimits(tokens_per_day=100), 0.0)
    usage.tokens(80, 0.0, 0)
    usage.tokens(80, 0.0, 0)
    with pytest.raises(Refusal, match="more than 100 tokens a day") as caught:
        usage.tokens(1, 0.0, 0)
    assert (caught.value.status, caught.value.retry_after_s) == (429, float(DAY_S))
    assert usage.tokens(0, 0.0, 0) == 0


def test_new_limits_apply_at_once_and_the_day_continues() -> None:
    usage = Usage(KeyLimits(tokens_per_day=100), 0.0)
    used(usage, 90, 0)
    usage.change(KeyLimits(tokens_per_day=50), 0.0)
    assert used(usage, 1, 0) == DAY_S
    usage.change(KeyLimits(tokens_per_day=91), 0.0)
    assert used(usage, 1, 0) == 0.0
    assert used(usage, 1, 0) == DAY_S


def test_prefix_cache_is_per_key_or_per_group() -> None:
    def salts(*keys: KeyEntry) -> list[str | None]:
        ring = KeyRing(keys, 0.0)
        return [ring.find({b"authorization": b"Bearer " + key.key.encode()}).salt for key in keys]

    alone = salts(KeyEntry("a", "sk-a", KeyLimits()), KeyEntry("b", "sk-b", KeyLimits()))
    assert len(set(alone)) == 2
    grouped = salts(*(KeyEntry(name, f"sk-{name}", KeyLimits(), "team") for name in "abc"))
    assert len(set(grouped)) == 1
    assert grouped[0] not in alone
    # The same in another gateway, and after a key is renamed.
    assert salts(KeyEntry("other", "sk-a", KeyLimits())) == alone[:1]
    assert KeyRing((), 0.0).find({}).salt is None
