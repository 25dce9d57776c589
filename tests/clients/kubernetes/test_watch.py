"""A watched collection: its state after any changes, and faults of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.clients.kubernetes.watch import (
    MAX_PAUSE_S,
    MIN_PAUSE_S,
    Collection,
    Objects,
    Trouble,
    WatchedObjects,
    follow,
    pause_s,
)

httpx2 = pytest.importorskip("httpx2", reason="lightkube is missing: pip install 'forebay[kubernetes]'")

PODS = Collection("/api/v1/namespaces/n/pods", namespace="n", selector="a=b", what="pods of n")


def pod(name: str, version: int, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, **more}


def listed(version: int, *names: str) -> Any:
    return {"metadata": {"resourceVersion": str(version)}, "items": [pod(name, version) for name in names]}


def event(kind: str, name: str, version: int, **more: Any) -> Any:
    return {"type": kind, "object": pod(name, version, **more)}


GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}


@given(st.lists(st.tuples(st.sampled_from(("ADDED", "MODIFIED", "DELETED")), st.sampled_from("abc"))))
def test_after_any_events_the_state_equals_a_list(events: list[tuple[str, str]]) -> None:
    state = WatchedObjects()
    state.replace(listed(1, "a"))
    there = {"a"}
    for at, (kind, name) in enumerate(events, 2):
        assert state.apply(event(kind, name, at))
        there = there - {name} if kind == "DELETED" else there | {name}
        assert state.version == str(at)
    assert set(state.objects) == there


def test_bookmark_moves_only_the_version() -> None:
    state = WatchedObjects()
    state.replace(listed(1, "a"))
    assert not state.apply({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
    assert (state.version, set(state.objects)) == ("9", {"a"})


@pytest.mark.parametrize("wrong", [None, [], {}, {"type": "ADDED"}, {"type": "X", "object": pod("a", 1)}])
def test_invalid_event_is_one_error(wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        WatchedObjects().apply(wrong)
    with pytest.raises(ValueError, match="expected a list"):
        WatchedObjects().replace(wrong)


@given(st.integers(1, 10_000))
def test_pauses_grow_and_are_bounded(failures: int) -> None:
    assert MIN_PAUSE_S <= pause_s(failures) <= pause_s(failures + 1) <= MAX_PAUSE_S


Answer = Callable[[], Any]


@dataclass
class Server:
    """Returns its answers in turn, then an idle watch; records parameters."""

    answers: list[Any]
    asked: list[dict[str, str]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def __call__(self, request: Any) -> Any:
        self.asked.append(dict(request.url.params))
        if not self.answers:
            raise StopAsyncIteration
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return httpx2.Response(answer, json={"message": f"said {answer}"})
        if isinstance(answer, dict | bytes):
            return httpx2.Response(200, content=answer if isinstance(answer, bytes) else orjson.dumps(answer))
        return httpx2.Response(200, content=lines(answer))

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def lines(events: Iterable[Any]) -> AsyncIterator[bytes]:
    for each in events:
        if isinstance(each, Exception):
            raise each
        text = each if isinstance(each, bytes) else orjson.dumps(each) + b"\n"
        # In two pieces, as a network may give it.
        yield text[:7]
        yield text[7:]


async def told(server: Server, most: int) -> list[set[str] | str]:
    """The first `most` reports of the watch."""
    found: list[set[str] | str] = []
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(server), base_url="http://api.invalid")
    async with http, aclosing(follow(http, PODS, sleep=server.sleep, jitter=lambda: 1.0)) as each:
        async for one in each:
            found.append(said(one))
            if len(found) == most:
                break
    return found


def said(found: Objects | Trouble) -> set[str] | str:
    return found.text if isinstance(found, Trouble) else set(found)


async def test_it_lists_once_and_resumes_ended_watches() -> None:
    events = [event("ADDED", "b", 6), event("DELETED", "a", 7)]
    server = Server([listed(5, "a"), events, [event("ADDED", "c", 8)]])
    assert await told(server, 4) == [{"a"}, {"a", "b"}, {"b"}, {"b", "c"}]
    assert server.asked[0] == {"labelSelector": "a=b"}
    assert [asked.get("resourceVersion") for asked in server.asked] == [None, "5", "7"]
    assert all(asked["watch"] == "true" for asked in server.asked[1:])


@pytest.mark.parametrize("gone", [[GONE], 410], ids=["event", "answer"])
async def test_expired_version_is_listed_again(gone: Any) -> None:
    server = Server([listed(5, "a"), gone, listed(9, "b"), [event("ADDED", "c", 10)]])
    assert await told(server, 3) == [{"a"}, {"b"}, {"b", "c"}]
    assert [asked.get("resourceVersion") for asked in server.asked] == [None, "5", None, "9"]


async def test_broken_watch_resumes_at_the_last_version() -> None:
    lost = httpx2.ReadError("connection reset")
    refused = httpx2.ConnectError("connection refused")
    server = Server([listed(5, "a"), [event("ADDED", "b", 6), lost], refused, [event("ADDED", "c", 7)]])
    found = await told(server, 6)
    assert found[:2] == [{"a"}, {"a", "b"}]
    assert all("http://api.invalid does not answer: connection" in str(each) for each in found[2:4])
    # It answers again: the trouble is over, even if nothing has changed.
    assert found[4:] == [{"a", "b"}, {"a", "b", "c"}]
    assert [asked.get("resourceVersion") for asked in server.asked] == [None, "5", "6", "6"]
    assert server.pauses == [MIN_PAUSE_S, 2 * MIN_PAUSE_S]


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
async def test_refusal_is_reported_and_retried(code: int) -> None:
    server = Server([code, code, listed(5, "a")])
    first, again, last = await told(server, 3)
    assert str(first).startswith("pods of n: ")
    assert f"said {code}" in str(first)
    assert (again, last) == (first, {"a"})
    assert server.pauses == [MIN_PAUSE_S, 2 * MIN_PAUSE_S]


@pytest.mark.parametrize("wrong", [b"<html>", b"[]", {"items": [1], "metadata": {"resourceVersion": "1"}}])
async def test_invalid_list_is_reported(wrong: Any) -> None:
    first, last = await told(Server([wrong, listed(5, "a")]), 2)
    assert "the API server's answer is not understood" in str(first)
    assert last == {"a"}


async def test_invalid_event_is_reported_and_the_collection_listed_again() -> None:
    server = Server([listed(5, "a"), [b"<html>\n"], listed(6, "b")])
    first, trouble, last = await told(server, 3)
    assert (first, last) == ({"a"}, {"b"})
    assert "is not understood" in str(trouble)


async def test_refused_watch_is_retried_ever_more_rarely() -> None:
    server = Server([listed(5, "a"), 403, listed(5, "a"), 403, listed(5, "a"), 403])
    found = await told(server, 6)
    assert found[::2] == [{"a"}] * 3
    assert server.pauses == [MIN_PAUSE_S, 2 * MIN_PAUSE_S]


async def test_server_that_ends_watches_at_once_is_polled_ever_more_rarely() -> None:
    server = Server([listed(5, "a"), [], [], [], [event("ADDED", "b", 6)]])
    assert await told(server, 2) == [{"a"}, {"a", "b"}]
    assert server.pauses == [MIN_PAUSE_S, 2 * MIN_PAUSE_S, 4 * MIN_PAUSE_S]
