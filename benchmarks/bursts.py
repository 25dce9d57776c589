"""Streams with planted bursts, made from a seed, and Kleinberg's burst detector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SHAPES = ("step", "ramp", "spike", "hill")
MIN_BASE_PER_S, MAX_BASE_PER_S = 0.2, 2.0
"""Base rates of bursting terms, at the stream's mean rate."""
SYLLABLES = ("ba", "do", "fi", "ga", "ke", "lu", "mo", "na", "pe", "ri", "so", "tu", "va", "we", "xi", "zo")


@dataclass(frozen=True, slots=True)
class BurstPlan:
    seed: int = 1
    bursts: int = 50
    hours: float = 6.0
    rate_per_s: float = 50.0
    """Daily mean; the rate varies from 0.4 to 1.6 times that, lowest at 4 o'clock."""
    start_hour: float = 6.0
    words_per_post: int = 8
    vocabulary: int = 200_000
    exponent: float = 1.05
    """The frequency of word k is proportional to 1/(k + 3)^exponent (Zipf, Mandelbrot)."""
    warm_up_s: float = 1200.0
    """No burst begins earlier, nor in the last ten minutes."""


@dataclass(frozen=True, slots=True)
class PlantedBurst:
    terms: tuple[str, ...]
    onset_s: float
    end_s: float
    shape: str
    factor: float
    base_per_s: float
    extra_per_s: float


class BurstStream:
    """The stream of a plan; the same plan gives the same posts."""

    def __init__(self, plan: BurstPlan) -> None:
        self.plan = plan
        self._rng = np.random.default_rng(plan.seed)
        weights = (np.arange(plan.vocabulary) + 3.0) ** -plan.exponent
        self._cumulative = np.cumsum(weights / weights.sum())
        self._shares = weights / weights.sum()
        self.words = [_word(index) for index in range(plan.vocabulary)]
        self.bursts = self._plant()

    def _plant(self) -> tuple[PlantedBurst, ...]:
        plan, rng = self.plan, self._rng
        rates = self._shares * plan.words_per_post * plan.rate_per_s
        usable = np.flatnonzero((rates >= MIN_BASE_PER_S) & (rates <= MAX_BASE_PER_S))
        chosen = rng.choice(usable, plan.bursts, replace=False)
        onsets = rng.uniform(plan.warm_up_s, plan.hours * 3600 - 600, plan.bursts)
        found = []
        for index, (word, onset) in enumerate(zip(chosen, onsets, strict=True)):
            base = float(rates[word])
            kind = index % 5
            factor = 5.0 if kind < 2 else float(np.exp(rng.uniform(np.log(4), np.log(30))))
            main = self.words[word]
            if kind == 4:
                main, base, factor = f"{_word(plan.vocabulary + index)}", 0.0, 0.0
            extra = (factor - 1) * base if base else float(np.exp(rng.uniform(np.log(0.4), np.log(4))))
            company = [f"{main} {_word(2 * plan.vocabulary + index)}"] if index % 2 else []
            company += [f"#{main}{index}"] if index % 3 == 0 else []
            company += [f"https://example.org/{index}"] if index % 4 == 0 else []
            length = float(rng.uniform(180, 900))
            found.append(
                PlantedBurst((main, *company), float(onset), float(onset) + length,
                             SHAPES[index // 5 % len(SHAPES)], factor, base, extra)
            )  # fmt: skip
        return tuple(sorted(found, key=lambda burst: burst.onset_s))

    def rate_per_s(self, second: npt.ArrayLike) -> npt.NDArray[np.float64]:
        hour = self.plan.start_hour + np.asarray(second, np.float64) / 3600
        return np.asarray(self.plan.rate_per_s * (1 - 0.6 * np.cos(2 * np.pi * (hour - 4) / 24)))

    def posts(self) -> Iterator[tuple[int, str]]:
        """Yields (ms since the start, text) in order of time."""
        plan = self.plan
        rng = np.random.default_rng([plan.seed, 1])
        for second in range(int(plan.hours * 3600)):
            number = int(rng.poisson(self.rate_per_s(second)))
            picks = np.searchsorted(self._cumulative, rng.random((number, plan.words_per_post)))
            texts = [
                " ".join([self.words[min(pick, plan.vocabulary - 1)] for pick in row])
                for row in picks.tolist()
            ]
            # The daily rhythm applies to bursts, too.
            rhythm = float(self.rate_per_s(second)) / plan.rate_per_s
            for burst in self.bursts:
                if burst.onset_s - 1 < second < burst.end_s:
                    strength = shape_at(burst.shape, (second - burst.onset_s) / (burst.end_s - burst.onset_s))
                    for _ in range(int(rng.poisson(burst.extra_per_s * strength * rhythm))):
                        texts.append(self._burst_post(burst, rng))
            for time_ms, text in zip(
                np.sort(rng.integers(0, 1000, len(texts))).tolist(), _mixed(texts, rng), strict=True
            ):
                yield second * 1000 + time_ms, text

    def _burst_post(self, burst: PlantedBurst, rng: np.random.Generator) -> str:
        picks = np.searchsorted(self._cumulative, rng.random(self.plan.words_per_post - 2)).tolist()
        words = [self.words[min(pick, self.plan.vocabulary - 1)] for pick in picks]
        main, *company = burst.terms
        with_it = [term for term in company if rng.random() < 0.8]
        at = int(rng.integers(len(words) + 1))
        detail = [term for term in with_it if term.startswith(main)][:1] or [main]
        rest = [term for term in with_it if term not in detail]
        return " ".join([*words[:at], *detail, *words[at:], *rest])


def shape_at(shape: str, share: float) -> float:
    """Height of a shape, at most 1, at this share of the burst's time.

    step: at once; ramp: up over the first tenth, then level; spike: at once, then down by a factor of e four
    times; hill: up over a third and down again.
    """
    if not 0 <= share < 1:
        return 0.0
    if shape == "step":
        return 1.0
    if shape == "ramp":
        return min(1.0, share * 10)
    if shape == "spike":
        return float(np.exp(-4 * share))
    return min(share * 3, (1 - share) * 1.5)


def _mixed(texts: list[str], rng: np.random.Generator) -> list[str]:
    return [texts[index] for index in rng.permutation(len(texts))]


def _word(index: int) -> str:
    word = ""
    index += len(SYLLABLES)
    while index:
        index, digit = divmod(index, len(SYLLABLES))
        word += SYLLABLES[digit]
    return word


Doubles = npt.NDArray[np.float64]

SCALING = 3.0
"""Ratio of the share of posts in the bursting state to the usual share."""
GAMMA = 1.0
"""Cost of entering the bursting state, in units of ln(number of batches)."""
MAX_SHARE = 0.9999


@dataclass(frozen=True, slots=True)
class Interval:
    """Batches `first` up to `end` in the bursting state, and the evidence for it in nats."""

    first: int
    end: int
    weight: float


def kleinberg_bursts(counts: Doubles, totals: Doubles) -> list[list[Interval]]:
    terms, batches = counts.shape
    usual = np.clip(counts.sum(axis=1) / max(totals.sum(), 1), 1e-12, MAX_SHARE)
    raised = np.minimum(usual * SCALING, MAX_SHARE)

    def cost(share: Doubles) -> Doubles:
        return -(counts * np.log(share)[:, None] + (totals - counts) * np.log1p(-share)[:, None])

    low, high = cost(usual), cost(raised)
    enter = GAMMA * np.log(max(batches, 2))
    best_low, best_high = np.zeros(terms), np.full(terms, np.inf)
    from_high, from_low = np.zeros((batches, terms), bool), np.zeros((batches, terms), bool)
    for batch in range(batches):
        from_high[batch] = best_high < best_low
        from_low[batch] = best_low + enter < best_high
        best_low, best_high = (
            np.minimum(best_low, best_high) + low[:, batch],
            np.minimum(best_high, best_low + enter) + high[:, batch],
        )
    state = best_high < best_low
    states = np.zeros((batches, terms), bool)
    for batch in range(batches - 1, -1, -1):
        states[batch] = state
        state = np.where(state, ~from_low[batch], from_high[batch])
    gain = low - high
    found: list[list[Interval]] = []
    for term in range(terms):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], states[:, term].astype(np.int8), [0]])))
        pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        found.append([Interval(a, b, float(gain[term, a:b].sum())) for a, b in pairs])
    return found
