"""One request of a load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request to send.

    `index` counts from 0 within the load. `due_s`: seconds after the start of the run; None in a closed loop.
    `prompt`: text or token ids. `prompt_tokens`: the exact length, if known. `output_tokens`: the most tokens
    to generate, and the least as well if `exact`. Requests of one `group` begin with the same prefix. Those
    of one `session` are its turns, each due no earlier than the previous answer.
    """

    index: int
    due_s: float | None
    prompt: str | Sequence[int]
    output_tokens: int
    exact: bool = True
    prompt_tokens: int | None = None
    group: str | None = None
    session: str | None = None
