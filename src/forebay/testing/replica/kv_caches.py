"""KV caches passed between fake replicas, in vLLM's format."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

import orjson

from forebay.testing.replica.asked import ParsedRequest


@dataclass(frozen=True, slots=True)
class KvPlace:
    """The location of a prompt's KV cache, valid until `until_s` on the event loop's clock."""

    replica: str
    number: int
    prompt: str
    until_s: float

    def params(self) -> dict[str, Any]:
        """Parameters like those of vLLM's NIXL connector, which lacks the prompt and the time."""
        place = {"remote_engine_id": self.replica, "remote_block_ids": [self.number]}
        own = {"prompt": self.prompt, "until_s": self.until_s}
        return {"do_remote_prefill": True, "do_remote_decode": False, **place, **own}

    def holds(self, asked: ParsedRequest, *, now_s: float) -> bool:
        return self.prompt == prompt_hash(asked) and now_s <= self.until_s


class KvCaches:
    """KV caches given and read by one replica."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self._given = 0

    def give(self, asked: ParsedRequest, replica: str, *, until_s: float) -> dict[str, Any] | None:
        if not (asked.kv_transfer and asked.kv_transfer.get("do_remote_decode")):
            return None
        self._given += 1
        return KvPlace(replica, self._given, prompt_hash(asked), until_s).params()

    def read(self, asked: ParsedRequest, *, now_s: float) -> bool:
        place = kv_place(asked)
        if place is None:
            return False
        self.reads[f"{place.replica} {place.number}"] += 1
        return not place.holds(asked, now_s=now_s)


def kv_place(asked: ParsedRequest) -> KvPlace | None:
    params = asked.kv_transfer
    if not params or not params.get("do_remote_prefill"):
        return None
    (number,) = params["remote_block_ids"]
    return KvPlace(params["remote_engine_id"], number, params["prompt"], params["until_s"])


def prompt_hash(asked: ParsedRequest) -> str:
    return sha1(orjson.dumps([asked.text, asked.schema])).hexdigest()
