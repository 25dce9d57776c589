"""What of headers goes on."""

from __future__ import annotations

import asyncio
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
    headers_down,
    headers_up,
    request_id,
)

names = st.sampled_from([*sorted(HOP_BY_HOP), b"x-a", b"X-B", b"Content-Type"])
pairs = st.lists(st.tuples(names, st.binary(max_size=8)), max_size=12)


@given(headers=pairs)
def test_no_header_of_the_connection_goes_on(headers: list[tuple[bytes, bytes]]) -> None:
    for kept in (
        [name for name, _ in headers_down(headers)],
        [name.encode() for name, _ in headers_up(headers)],
    ):
        assert not HOP_BY_HOP & set(kept)


def test_what_the_connection_header_names_goes_no_further() -> None:
    headers = [(b"Connection", b"close, X-A"), (b"x-a", b"1"), (b"x-b", b"2"), (b"x-b", b"3")]
    assert headers_down(headers) == [(b"x-b", b"2"), (b"x-b", b"3")]


def test_what_is_not_plain_goes_no_further() -> None:
    headers = [(b"x-a", "é".encode("latin-1")), (b"x-b", b"a\x00"), (b"x-c", b"a\tb"), (b"x-d", b"a b")]
    assert headers_up(headers) == [("x-d", "a b")]


def test_secrets_go_no_further() -> None:
    headers = [(b"Authorization", b"Bearer x"), (b"Cookie", b"x"), (b"X-Api-Key", b"x"), (b"Accept", b"*/*")]
    assert headers_up(headers) == [("accept", "*/*")]


@given(given=st.binary(max_size=300))
def test_an_id_is_always_fit_for_a_header(given: bytes) -> None:
    id = request_id({b"x-request-id": given})
    assert 0 < len(id) <= 200
    assert id.isascii()
    assert id.isprintable()


def test_a_clients_id_is_kept() -> None:
    assert request_id({b"x-request-id": b"job-7/a b"}) == "job-7/a b"


async def test_time_over() -> None:
    with pytest.raises(TimeOver), TimeLimit(0.01):
        await asyncio.Event().wait()
    # The task itself goes on, and may be cancelled later.
    await asyncio.sleep(0)


async def test_time_enough() -> None:
    with TimeLimit(60.0):
        await asyncio.sleep(0)
    with TimeLimit(float("inf")):
        await asyncio.sleep(0)


async def test_a_cancellation_from_outside_stays_one() -> None:
    async def wait() -> None:
        with TimeLimit(60.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_client_hangs_up() -> None:
    messages: list[dict[str, Any]] = [{"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    with pytest.raises(HungUp):
        async with UntilHungUp(receive):
            await asyncio.Event().wait()


async def test_the_client_stays() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async with UntilHungUp(receive):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= 2
