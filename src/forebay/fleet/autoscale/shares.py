"""Divide a pipeline's replicas among pools of different replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import Limits


@dataclass(frozen=True, slots=True)
class Share:
    """`parts` of `of`, of all replicas and of all work. Raises `SettingError` for an invalid share."""

    parts: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= self.of:
            raise SettingError(f"share: expected at least 1 part and no more than all, found {self}")

    @property
    def whole(self) -> bool:
        return self.parts == self.of

    def __str__(self) -> str:
        return f"{self.parts} of {self.of}"

    def of_replicas(self, wanted: int) -> int:
        """The pool's part of `wanted` replicas. Rounded up, so that the pools have at least `wanted` in
        total, and none is empty if any is wanted."""
        return -(-wanted * self.parts // self.of)

    def of_work(self, requests: float) -> float:
        return requests * self.parts / self.of


WHOLE = Share()


def shares(parts: Sequence[int]) -> tuple[Share, ...]:
    """The share of each pool. Raises `SettingError` for one without a part."""
    return tuple(Share(each, sum(parts)) for each in parts)


def limits_of_pools(limits: Limits, parts: Sequence[int]) -> tuple[Limits, ...]:
    """The limits of each pool: their maxima add up to that of `limits`, each at least 1.

    Raises `SettingError` if there are more pools than replicas.
    """
    if limits.ceiling < len(parts):
        raise SettingError(
            f"expected at least {len(parts)} replicas at most, one for each pool, found {limits.ceiling}"
        )
    most = _split(limits.ceiling, parts)
    # The ceiling includes the budget.
    found = replace(limits, most=limits.ceiling, budget_per_hour=None, price_per_hour=None)
    return tuple(
        replace(found, least=min(share.of_replicas(limits.least), each), most=each)
        for share, each in zip(shares(parts), most, strict=True)
    )


def _split(number: int, parts: Sequence[int]) -> list[int]:
    """By largest remainders, and at least one for each."""
    exact = [Fraction(number * each, sum(parts)) for each in parts]
    found = [max(int(each), 1) for each in exact]
    while sum(found) < number:
        found[max(range(len(parts)), key=lambda at: exact[at] - found[at])] += 1
    while sum(found) > number:
        found[max(range(len(parts)), key=lambda at: (found[at] > 1, found[at] - exact[at]))] -= 1
    return found
