"""One request of a load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request to be sent.

    `index` counts from 0 within the load. `due_s`: seconds after the start of the run at which it is to be
    sent; None in a closed loop, where it is due as soon as a place is free. `prompt`: text, or the numbers of
    its tokens. `prompt_tokens`: the exact length of the prompt, where the load knows it. `output_tokens`: how
    many tokens to generate; at least as many too if `exact`. Requests of one `group` begin with the same
    prefix; those of one `session` are its turns, each due no earlier than the answer before it.
    """

    index: int
    due_s: float | None
    prompt: str | Sequence[int]
    output_tokens: int
    exact: bool = True
    prompt_tokens: int | None = None
    group: str | None = None
    session: str | None = None
