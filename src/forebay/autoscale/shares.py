"""How the replicas that a pipeline wants in all are shared by pools of different replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from forebay.autoscale.base import Limits
from forebay.errors import SettingError


@dataclass(frozen=True, slots=True)
class Share:
    """`parts` of `of`, of all replicas and of all work. Raises `SettingError` for what is no share."""

    parts: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= self.of:
            raise SettingError(f"share: expected at least 1 part and no more than all, found {self}")

    @property
    def whole(self) -> bool:
        """Whether there is no other pool."""
        return self.parts == self.of

    def __str__(self) -> str:
        return f"{self.parts} of {self.of}"

    def of_replicas(self, wanted: int) -> int:
        """The pool's replicas, of so many wanted in all. Rounded up, so that all pools together have at
        least as many, and none is empty where any is wanted."""
        return -(-wanted * self.parts // self.of)

    def of_work(self, requests: float) -> float:
        """The pool's requests, of so many in all."""
        return requests * self.parts / self.of


WHOLE = Share()
"""That of a pool beside which there is no other."""


def shares(parts: Sequence[int]) -> tuple[Share, ...]:
    """The share of each pool. Raises `SettingError` for one without a part."""
    return tuple(Share(each, sum(parts)) for each in parts)


def limits_of_pools(limits: Limits, parts: Sequence[int]) -> tuple[Limits, ...]:
    """The bounds of each pool: the most of all pools add up to that of `limits`, and each may have one.

    Raises `SettingError` where there are more pools than replicas.
    """
    if limits.ceiling < len(parts):
        raise SettingError(
            f"expected at least {len(parts)} replicas at most, one for each pool, found {limits.ceiling}"
        )
    most = _split(limits.ceiling, parts)
    # The budget is in the ceiling.
    found = replace(limits, most=limits.ceiling, budget_per_hour=None, price_per_hour=None)
    return tuple(
        replace(found, least=min(share.of_replicas(limits.least), each), most=each)
        for share, each in zip(shares(parts), most, strict=True)
    )


def _split(number: int, parts: Sequence[int]) -> list[int]:
    """`number` by parts, by the largest remainders, and at least one for each."""
    exact = [Fraction(number * each, sum(parts)) for each in parts]
    found = [max(int(each), 1) for each in exact]
    while sum(found) < number:
        found[max(range(len(parts)), key=lambda at: exact[at] - found[at])] += 1
    while sum(found) > number:
        found[max(range(len(parts)), key=lambda at: (found[at] > 1, found[at] - exact[at]))] -= 1
    return found
