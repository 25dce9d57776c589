"""How much work waits before a job: records that are known, and an estimate of the tokens in them.

Admission and autoscaling read it: tokens, not records, are what an engine works on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spent:
    """What a job's records have cost so far: `records` that were answered or given up, and their tokens."""

    records: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """`records` that wait, and their tokens as estimated; None where nothing is known to estimate from.

    `age_s`: how long ago the records were counted.
    """

    records: int
    prompt_tokens: int | None
    completion_tokens: int | None
    age_s: float


def estimate(records: int, spent: Spent, age_s: float = 0.0) -> Backlog:
    """The backlog of `records`: as many tokens each as the mean of what is `spent`, rounded.

    tokens = records × tokens spent ÷ records spent, for prompts and for completions. Records that were given
    up count with what they cost, as some of those that wait will be given up too. What waits is taken to be
    like what came before it.
    """
    if spent.records <= 0:
        return Backlog(records, None, None, age_s)
    return Backlog(
        records,
        round(records * spent.prompt_tokens / spent.records),
        round(records * spent.completion_tokens / spent.records),
        age_s,
    )
