"""A KV cache is valid for its prompt until it expires."""

from __future__ import annotations

import orjson

from forebay.engine.protocol import KV_TRANSFER
from forebay.fleet.disaggregated import PREFILL_PARAMS
from forebay.testing.replica.asked import ParsedRequest, read_body
from forebay.testing.replica.work import KvCaches


def asked(prompt: str, params: object) -> ParsedRequest:
    return read_body(orjson.dumps({"model": "m", "prompt": prompt, KV_TRANSFER: params}), chat=False)


def test_what_is_given_is_read_in_time_and_for_the_same_prompt() -> None:
    caches = KvCaches()
    place = caches.give(asked("Why?", PREFILL_PARAMS), "http://p:1", until_s=5.0)
    assert not caches.read(asked("Why?", place), now_s=5.0)
    assert caches.read(asked("Why?", place), now_s=5.1)
    assert caches.read(asked("How?", place), now_s=1.0)
    assert list(caches.reads.values()) == [3]


def test_nobody_asks_and_nothing_is_given_or_read() -> None:
    caches = KvCaches()
    assert caches.give(asked("Why?", None), "http://p:1", until_s=5.0) is None
    assert not caches.read(asked("Why?", None), now_s=1.0)
    assert not caches.reads
