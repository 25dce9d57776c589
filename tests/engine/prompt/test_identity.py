"""A request's id depends only on its record, its hash only on its contents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.prompt import request_hash, request_id
from forebay.records import Event, Message, Request, Sampling


def test_an_explicit_id_wins_then_the_position() -> None:
    event = Event(raw=b"{}", fields={}, position="f@1")
    assert request_id(event, "k", "mine") == "mine"
    assert request_id(event, "k", None) == "f@1"


def test_without_a_position_the_bytes_and_the_key_make_the_id() -> None:
    event = Event(raw=b'{"a":1}', fields={"a": 1})
    assert request_id(event, "k", None) == "6313576a579b50545f7d1700dc38efcf"
    assert request_id(replace(event, time_ms=5), "k", None) == request_id(event, "k", None)


@given(st.binary(max_size=20), st.text(max_size=5), st.binary(max_size=20), st.text(max_size=5))
def test_different_records_have_different_ids(raw: bytes, key: str, other: bytes, other_key: str) -> None:
    one = request_id(Event(raw=raw, fields={}), key, None)
    two = request_id(Event(raw=other, fields={}), other_key, None)
    assert (one == two) == ((raw, key) == (other, other_key))
    assert len(one) == 32


ASKED = Request(
    id="1",
    model="m",
    messages=(Message("user", "hällo \ud800"),),
    sampling=Sampling(max_tokens=8, stop=("a",), extra={"b": 1, "a": 2}),
    schema={"type": "object", "properties": {"x": {}, "a": {}}},
)


def test_the_hash_is_the_same_everywhere() -> None:
    assert request_hash(ASKED) == "d44b5404bb1b2fd74bf3a9c540f5de344a29a58a2b91203487f207713207187f"


def test_neither_the_id_nor_the_order_of_keys_counts() -> None:
    same = replace(
        ASKED,
        id="2",
        sampling=Sampling(max_tokens=8, temperature=0, stop=("a",), extra={"a": 2, "b": 1}),
        schema={"properties": {"a": {}, "x": {}}, "type": "object"},
    )
    assert request_hash(same) == request_hash(ASKED)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"messages": (Message("system", "hällo \ud800"),)},
        {"messages": (), "prompt": "hällo"},
        {"sampling": Sampling(max_tokens=9)},
        {"sampling": replace(ASKED.sampling, temperature=0.1)},
        {"sampling": replace(ASKED.sampling, top_p=0.9)},
        {"sampling": replace(ASKED.sampling, seed=1)},
        {"sampling": replace(ASKED.sampling, stop=())},
        {"sampling": replace(ASKED.sampling, extra={})},
        {"schema": None},
    ],
)
def test_all_that_determines_the_answer_counts(change: dict[str, object]) -> None:
    assert request_hash(replace(ASKED, **change)) != request_hash(ASKED)  # type: ignore[arg-type]
