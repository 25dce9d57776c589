"""KV caches of prompts that one fake replica makes and another one reads, in vLLM's words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

import orjson

from forebay.testing.replica.asked import Asked


@dataclass(frozen=True, slots=True)
class KvPlace:
    """Where the KV cache of a prompt is until a moment of the event loop's clock."""

    replica: str
    number: int
    prompt: str
    until_s: float

    def params(self) -> dict[str, Any]:
        """As vLLM's NIXL connector says it; a real one says nothing of the prompt and the moment."""
        place = {"remote_engine_id": self.replica, "remote_block_ids": [self.number]}
        own = {"prompt": self.prompt, "until_s": self.until_s}
        return {"do_remote_prefill": True, "do_remote_decode": False, **place, **own}

    def holds(self, asked: Asked, *, now_s: float) -> bool:
        """Whether it is the cache of this prompt still."""
        return self.prompt == prompt_hash(asked) and now_s <= self.until_s


class KvCaches:
    """What one replica gives and reads. Moments are passed in."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        """How often it was told to read each, by where that is."""
        self._given = 0

    def give(self, asked: Asked, replica: str, *, until_s: float) -> dict[str, Any] | None:
        """Where the KV cache of the prompt is until a moment, if that was asked for."""
        if not (asked.kv_transfer and asked.kv_transfer.get("do_remote_decode")):
            return None
        self._given += 1
        return KvPlace(replica, self._given, prompt_hash(asked), until_s).params()

    def read(self, asked: Asked, *, now_s: float) -> bool:
        """Note what the request is told to read. Says whether that is another prompt's by now."""
        place = kv_place(asked)
        if place is None:
            return False
        self.reads[f"{place.replica} {place.number}"] += 1
        return not place.holds(asked, now_s=now_s)


def kv_place(asked: Asked) -> KvPlace | None:
    """What the request is told to read; None where it is told nothing."""
    params = asked.kv_transfer
    if not params or not params.get("do_remote_prefill"):
        return None
    (number,) = params["remote_block_ids"]
    return KvPlace(params["remote_engine_id"], number, params["prompt"], params["until_s"])


def prompt_hash(asked: Asked) -> str:
    """Of all that a prompt is made of."""
    return sha1(orjson.dumps([asked.text, asked.schema])).hexdigest()
