import pickle

import pytest

from forebay.testing.script import FAULTS, Faults, Mixture


def test_a_mixture_keeps_its_shares_and_its_draws() -> None:
    mixture = Mixture(((0.95, 0.05), (0.05, 2.0)), seed=1)
    draws = [mixture(f"r{i}") for i in range(20_000)]
    assert set(draws) == {0.05, 2.0}
    assert 0.045 < draws.count(2.0) / len(draws) < 0.055
    again = pickle.loads(pickle.dumps(mixture))
    assert [again(f"r{i}") for i in range(100)] == draws[:100]
    assert [Mixture(mixture.parts, seed=2)(f"r{i}") for i in range(1000)] != draws[:1000]


def test_a_marker_hits_every_try() -> None:
    assert [Faults().pick("r", "say ((fault:500))", n) for n in (1, 2, 99)] == ["500"] * 3


def test_a_marker_with_a_count_hits_the_first_tries() -> None:
    assert [Faults().pick("r", "((fault:cutx2))", n) for n in (1, 2, 3)] == ["cut", "cut", None]


def test_markers_follow_each_other() -> None:
    text = "((fault:503x1)) and ((fault:too_longx2))"
    assert [Faults().pick("r", text, n) for n in (1, 2, 3)] == ["503", "too_long", None]


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_every_fault_can_be_marked(fault: str) -> None:
    assert Faults().pick("r", f"((fault:{fault}))", 1) == fault


def test_shares_are_kept_and_drawn_again_for_each_try() -> None:
    faults = Faults((("500", 0.1), ("cut", 0.2)), seed=3)
    picks = [faults.pick(f"r{i}", "", 1) for i in range(10_000)]
    assert 900 < picks.count("500") < 1100
    assert 1850 < picks.count("cut") < 2150
    assert picks == [faults.pick(f"r{i}", "", 1) for i in range(10_000)]
    assert picks != [faults.pick(f"r{i}", "", 2) for i in range(10_000)]


@pytest.mark.parametrize("shares", [(("nonsense", 0.1),), (("500", 1.1),), (("500", -0.1),)])
def test_wrong_shares_are_refused(shares: tuple[tuple[str, float], ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Faults(shares)


def test_shares_are_relative_to_their_sum() -> None:
    draws = [Mixture(((3, 1.0), (1, 2.0)))(f"r{i}") for i in range(4000)]
    assert 0.7 < draws.count(1.0) / len(draws) < 0.8


@pytest.mark.parametrize("text", ["", "((fault:))", "((fault:nonsense))", "((fault:500", "((fault:500x))"])
def test_text_that_is_not_a_marker_is_no_fault(text: str) -> None:
    assert Faults().pick("r", text, 1) is None
