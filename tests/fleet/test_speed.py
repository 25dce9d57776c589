from __future__ import annotations

from random import Random

import pytest

from forebay.fleet.speed import REFIT_EVERY, PrefillSpeed, SpeedFit, features

TRUE = PrefillSpeed(0.012, 5e-5, 2e-9, 4e-8, 3e-11)


def samples(speed: PrefillSpeed, count: int, seed: int = 1) -> list[tuple[float, tuple[float, ...]]]:
    random = Random(seed)
    rows = []
    for _ in range(count):
        prompt = random.randint(50, 20_000)
        terms = features(random.uniform(1, prompt), prompt, random.randint(0, 60), random.uniform(0, 3e5))
        rows.append((speed.seconds(terms) * random.uniform(0.9, 1.1), terms))
    return rows


def test_fit_predicts_its_samples() -> None:
    fit = SpeedFit()
    for seconds, terms in samples(TRUE, 1000):
        fit.add(seconds, terms)
    for seconds, terms in samples(TRUE, 50, seed=2):
        assert fit.speed.seconds(terms) == pytest.approx(seconds, rel=0.15)


def test_fit_follows_a_change() -> None:
    fit = SpeedFit()
    slow = PrefillSpeed(*(10 * value for value in (0.012, 5e-5, 2e-9, 4e-8, 3e-11)))
    for seconds, terms in samples(TRUE, 1000) + samples(slow, 20_000):
        fit.add(seconds, terms)
    _, terms = samples(TRUE, 1, seed=3)[0]
    assert fit.speed.seconds(terms) == pytest.approx(slow.seconds(terms), rel=0.15)


def test_no_coefficient_is_negative() -> None:
    fit = SpeedFit()
    # Attention that makes prompts faster: nonsense, but a fit without bounds would take it.
    for seconds, terms in samples(PrefillSpeed(0.5, 1e-4, 0.0, 0.0, 0.0), 500):
        fit.add(max(0.0, seconds - terms[2] * 1e-9), terms)
    speed = fit.speed
    assert min(speed.request_s, speed.token_s, speed.pair_s, speed.decode_s, speed.context_s) >= 0
    assert speed != PrefillSpeed()


def test_identical_prompts_can_be_fitted() -> None:
    fit = SpeedFit()
    terms = features(100.0, 100, 0.0, 0.0)
    for _ in range(2 * REFIT_EVERY):
        fit.add(0.05, terms)
    assert fit.speed.seconds(terms) == pytest.approx(0.05, rel=0.01)
