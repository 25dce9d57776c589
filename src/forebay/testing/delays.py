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
    """A delay that is the same for every request.

    Attributes:
        seconds: The delay.

    >>> Fixed(0.01)("any request")
    0.01
    """

    seconds: float = 0.05

    def __call__(self, request_id: str) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Mixture:
    """A delay that each request draws by its id: the same request always takes the same time.

    Attributes:
        parts: Pairs of share and seconds. Shares are relative to their sum. By default 95 % of the requests
            take 50 ms and 5 % take 2 s, as in the benchmarks.
        seed: Another seed is another draw.

    >>> slow = Mixture(((0.9, 0.05), (0.1, 2.0)))
    >>> slow("request 1") == slow("request 1")
    True
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
