"""Agreement of clusterings, compared with values computed elsewhere."""

from __future__ import annotations

import pytest
from benchmarks.clusterings import adjusted_rand, mutual_information
from hypothesis import given
from hypothesis import strategies as st

pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40)


def test_known_values() -> None:
    # Values of scikit-learn 1.9 for the same labels.
    gold, found = [0, 0, 1, 1, 2, 2, 2], ["a", "b", "b", "b", "c", "c", "a"]
    assert mutual_information(gold, found) == pytest.approx(0.5636355530993447, abs=1e-9)
    assert adjusted_rand(gold, found) == pytest.approx(0.2125, abs=1e-9)


@given(pairs)
def test_names_do_not_matter_and_nothing_is_above_1(both: list[tuple[int, int]]) -> None:
    gold, found = [a for a, _ in both], [b for _, b in both]
    for measure in (mutual_information, adjusted_rand):
        value = measure(gold, found)
        assert value <= 1 + 1e-9
        assert measure(found, gold) == pytest.approx(value)
        assert measure([5 - a for a in gold], found) == pytest.approx(value)
        assert measure(gold, gold) == pytest.approx(1)


def test_one_cluster_has_no_agreement() -> None:
    assert mutual_information([0, 0, 1, 1], [0, 0, 0, 0]) == 0
    assert adjusted_rand([0, 0, 1, 1], [0, 0, 0, 0]) == 0
