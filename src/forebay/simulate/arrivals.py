"""Requests made up from a seed, where there is no trace."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from forebay.errors import SettingError
from forebay.simulate.traces import TraceRequest

SPREAD = 0.8
"""Sigma of the lognormal lengths: the longest tenth is some eight times as long as the shortest."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Poisson arrivals of `rate_per_s`, with lognormal lengths of these means in tokens.

    Each prompt begins with one of `prefixes` shared prefixes of `prefix_tokens` tokens, if any; lengths of
    prompts are without it. The same values give the same requests.
    """

    requests: int = 10_000
    rate_per_s: float = 10.0
    prompt_tokens: float = 1000.0
    output_tokens: float = 200.0
    prefixes: int = 0
    prefix_tokens: int = 0
    block_tokens: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.requests < 1 or self.rate_per_s <= 0 or min(self.prompt_tokens, self.output_tokens) < 1:
            raise SettingError(
                "arrivals: expected at least one request, a rate above 0 and mean lengths of at least 1; "
                f"found {self.requests}, {self.rate_per_s:g}, {self.prompt_tokens:g}, {self.output_tokens:g}"
            )

    def make(self) -> list[TraceRequest]:
        random = Random(self.seed)
        whole = self.prefix_tokens // self.block_tokens if self.prefixes else 0
        now_s = 0.0
        made = []
        for _ in range(self.requests):
            group = random.randrange(self.prefixes) if self.prefixes else 0
            prompt = self._length(random, self.prompt_tokens) + (self.prefix_tokens if self.prefixes else 0)
            blocks = tuple(group << 32 | at for at in range(whole))
            made.append(TraceRequest(now_s, prompt, self._length(random, self.output_tokens), blocks))
            now_s += random.expovariate(self.rate_per_s)
        return made

    @staticmethod
    def _length(random: Random, mean: float) -> int:
        return max(1, round(mean * random.lognormvariate(-SPREAD * SPREAD / 2, SPREAD)))
