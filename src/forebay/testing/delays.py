"""How long a scripted engine takes: pure functions of the request id, so that a run can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

Delay = Callable[[str], float]
"""From a request id to seconds. Must be picklable, and the same for the same id in every process."""


def unit(seed: int, *parts: object) -> float:
    """A number in [0, 1) that depends only on the arguments, evenly spread over them."""
    digest = blake2b("\0".join(map(str, (seed, *parts))).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") / 2**64


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same for every request."""

    seconds: float = 0.05

    def __call__(self, request_id: str) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Mixture:
    """Each request draws one of `parts`, pairs of share and seconds, by its id.

    The default is the load of the benchmarks: 95 % take 50 ms and 5 % take 2 s.
    Shares are relative to their sum.
    """

    parts: tuple[tuple[float, float], ...] = ((0.95, 0.05), (0.05, 2.0))
    seed: int = 0

    def __call__(self, request_id: str) -> float:
        left = unit(self.seed, "delay", request_id) * sum(share for share, _ in self.parts)
        for share, seconds in self.parts:
            left -= share
            if left < 0:
                return seconds
        return self.parts[-1][1]
