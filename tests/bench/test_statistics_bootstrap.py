"""Intervals over the requests of two runs."""

from __future__ import annotations

import random

import pytest

from forebay.bench.statistics import bootstrap_difference


def draws(mean: float, count: int, seed: int, alike: float = 0.0) -> list[float]:
    """Normal samples around a mean, with autocorrelation `alike`."""
    chance, found, last = random.Random(seed), [], 0.0
    for _ in range(count):
        last = alike * last + (1 - alike**2) ** 0.5 * chance.gauss(0, 1)
        found.append(mean + last)
    return found


def test_the_same_seed_gives_the_same_interval() -> None:
    a, b = draws(10, 200, 0), draws(11, 200, 1)
    assert bootstrap_difference(a, b, None) == bootstrap_difference(a, b, None)
    assert bootstrap_difference(a, b, None) != bootstrap_difference(a, b, None, seed=1)


@pytest.mark.parametrize("percent", [None, 50, 90])
def test_a_difference_is_within_its_interval(percent: float | None) -> None:
    low, high = bootstrap_difference(draws(10, 2000, 0), draws(11, 1500, 1), percent)
    assert 0.8 < low < 1.0 < high < 1.2


def test_of_the_same_there_is_none() -> None:
    low, high = bootstrap_difference([3.0] * 50, [3.0] * 20, 50)
    assert (low, high) == (0.0, 0.0)
    assert bootstrap_difference([1.0], [4.0], None) == (3.0, 3.0)


@pytest.mark.parametrize("alike", [0.0, 0.7])
def test_as_many_intervals_hold_the_truth_as_are_claimed(alike: float) -> None:
    """For equal runs, 95 of 100 intervals contain 0; slightly fewer with correlated neighbours. Drawing
    single requests instead of blocks would give about 60 of 100 there."""
    rounds = 200
    held = 0
    for seed in range(rounds):
        low, high = bootstrap_difference(
            draws(0, 400, 2 * seed, alike), draws(0, 400, 2 * seed + 1, alike), None
        )
        held += low <= 0 <= high
    assert held / rounds >= (0.91 if alike == 0 else 0.86)
    assert held / rounds < 1


def test_many_samples_are_drawn_in_parts() -> None:
    low, high = bootstrap_difference(draws(0, 30_000, 0), draws(0.5, 30_000, 1), 99)
    assert 0.3 < low < 0.5 < high < 0.7
