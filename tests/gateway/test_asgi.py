"""Which headers are forwarded, and what ends a request from outside."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.asgi import (
    HOP_BY_HOP,
    HungUp,
    TimeLimit,
    TimeOver,
    UntilHungUp,
    cancellings,
    headers_down,
    headers_up,
    request_id,
)

names = st.sampled_from([*sorted(HOP_BY_HOP), b"x-a", b"X-B", b"Content-Type"])
pairs = st.lists(st.tuples(names, st.binary(max_size=8)), max_size=12)


@given(headers=pairs)
def test_hop_by_hop_headers_are_not_forwarded(headers: list[tuple[bytes, bytes]]) -> None:
    for kept in (
        [name for name, _ in headers_down(headers)],
        [name.encode() for name, _ in headers_up(headers)],
    ):
        assert not HOP_BY_HOP & set(kept)


def test_cors_headers_of_a_replica_are_dropped() -> None:
    headers = [(b"Access-Control-Allow-Origin", b"*"), (b"x-b", b"2")]
    assert headers_down(headers) == [(b"x-b", b"2")]


def test_headers_named_by_connection_are_dropped() -> None:
    headers = [(b"Connection", b"close, X-A"), (b"x-a", b"1"), (b"x-b", b"2"), (b"x-b", b"3")]
    assert headers_down(headers) == [(b"x-b", b"2"), (b"x-b", b"3")]


def test_unusual_headers_are_dropped() -> None:
    headers = [(b"x-a", "é".encode("latin-1")), (b"x-b", b"a\x00"), (b"x-c", b"a\tb"), (b"x-d", b"a b")]
    assert headers_up(headers, ("x-a", "x-b", "x-c", "x-d")) == [("x-d", "a b")]
    assert headers_up(headers) == []


def test_secret_headers_are_dropped() -> None:
    headers = [(b"Authorization", b"Bearer x"), (b"Cookie", b"x"), (b"X-Api-Key", b"x"), (b"Accept", b"*/*")]
    assert headers_up(headers) == [("accept", "*/*")]


@given(given=st.binary(max_size=300))
def test_request_id_is_always_a_valid_header(given: bytes) -> None:
    id = request_id({b"x-request-id": given})
    assert len(id) <= 200
    assert id.isascii()
    assert id.isprintable()


def test_request_id_of_the_client_is_kept() -> None:
    assert request_id({b"x-request-id": b"job-7/a b"}) == "job-7/a b"


async def test_expired_time_limit_raises() -> None:
    with pytest.raises(TimeOver), TimeLimit(0.01):
        await asyncio.Event().wait()
    # The task itself continues, and may be cancelled later.
    await asyncio.sleep(0)


async def test_call_within_its_time_returns() -> None:
    with TimeLimit(60.0):
        await asyncio.sleep(0)
    with TimeLimit(float("inf")):
        await asyncio.sleep(0)


async def test_outside_cancellation_is_passed_on() -> None:
    async def wait() -> None:
        with TimeLimit(60.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


COUNTED = pytest.mark.skipif(sys.version_info < (3, 11), reason="tasks do not count their cancellations")


@COUNTED
@pytest.mark.parametrize("outside_first", [False, True])
async def test_cancellation_at_the_moment_of_the_timeout_is_passed_on(outside_first: bool) -> None:
    """All that is due is called in one round: first what was put there by `call_soon`, then the timers."""
    loop, steps = asyncio.get_running_loop(), list[str]()

    def cancel(task: asyncio.Task[None]) -> None:
        steps.append("outside")
        task.cancel()

    async def wait() -> None:
        try:
            with TimeLimit(0.0):
                if outside_first:
                    loop.call_soon(cancel, task)
                else:
                    loop.call_later(0.0, cancel, task)
                loop.call_later(0.0, steps.append, "end of the round")
                await asyncio.Event().wait()
        except TimeOver:
            steps.append("time over")
        finally:
            steps.append("ended")

    task = asyncio.create_task(wait())
    await asyncio.wait((task,))
    assert task.cancelled()
    assert steps == ["outside", "end of the round", "ended"]


async def test_time_limit_ends_with_its_block() -> None:
    """Also if something else ended it in the same round."""
    before = cancellings()

    async def fail() -> None:
        with TimeLimit(0.0):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise LookupError from None

    with pytest.raises(LookupError):
        await fail()
    assert cancellings() == before


@COUNTED
async def test_disconnect_at_the_moment_of_the_timeout_reports_both() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def wait() -> None:
        # The watch takes its one step in the round in which the timer is due.
        async with UntilHungUp(receive):
            with TimeLimit(0.0):
                await asyncio.Event().wait()

    with pytest.raises(HungUp):
        await wait()
    assert cancellings() == 0


async def test_disconnected_client_ends_the_call() -> None:
    messages: list[dict[str, Any]] = [{"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    with pytest.raises(HungUp):
        async with UntilHungUp(receive):
            await asyncio.Event().wait()


async def test_connected_client_gets_its_answer() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async with UntilHungUp(receive):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= 2
