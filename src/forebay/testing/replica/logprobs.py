"""Fake token probabilities in vLLM's format."""

from __future__ import annotations

import math
from typing import Any

from forebay.testing.answers import token_texts

TAKEN = math.log(0.5)
"""Log probability of the chosen token: one half. Each further one has half as much."""


def chat_logprobs(text: str, top: int) -> dict[str, Any]:
    content = []
    for token in token_texts(text) if text else ():
        likeliest = [_entry(one, value) for one, value in _likeliest(token, top).items()]
        content.append({**_entry(token, TAKEN), "top_logprobs": likeliest})
    return {"content": content}


def text_logprobs(text: str, top: int, offset: int) -> dict[str, Any]:
    """For a completion's text that starts `offset` characters into the answer."""
    found = token_texts(text) if text else []
    offsets = []
    for token in found:
        offsets.append(offset)
        offset += len(token)
    return {
        "text_offset": offsets,
        "token_logprobs": [TAKEN] * len(found),
        "tokens": found,
        "top_logprobs": [_likeliest(token, max(1, top)) for token in found],
    }


def _likeliest(token: str, top: int) -> dict[str, float]:
    others = {f"{token}{number}": TAKEN * (number + 1) for number in range(1, top)}
    return {token: TAKEN, **others} if top else {}


def _entry(token: str, value: float) -> dict[str, Any]:
    return {"token": token, "logprob": value, "bytes": list(token.encode())}
