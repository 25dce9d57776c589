import pickle

from hypothesis import given
from hypothesis import strategies as st

from forebay.testing.delays import Fixed, Mixture, unit


@given(st.integers(), st.text(), st.integers())
def test_a_unit_is_a_share_and_always_the_same(seed: int, name: str, attempt: int) -> None:
    assert 0 <= unit(seed, name, attempt) < 1
    assert unit(seed, name, attempt) == unit(seed, name, attempt)


def test_a_mixture_keeps_its_shares_and_its_draws() -> None:
    mixture = Mixture(((0.95, 0.05), (0.05, 2.0)), seed=1)
    draws = [mixture(f"r{i}") for i in range(20_000)]
    assert set(draws) == {0.05, 2.0}
    assert 0.045 < draws.count(2.0) / len(draws) < 0.055
    again = pickle.loads(pickle.dumps(mixture))
    assert [again(f"r{i}") for i in range(100)] == draws[:100]
    assert [Mixture(mixture.parts, seed=2)(f"r{i}") for i in range(1000)] != draws[:1000]


def test_shares_are_relative_to_their_sum() -> None:
    draws = [Mixture(((3, 1.0), (1, 2.0)))(f"r{i}") for i in range(4000)]
    assert 0.7 < draws.count(1.0) / len(draws) < 0.8


def test_fixed() -> None:
    assert Fixed(0.3)("any") == 0.3
