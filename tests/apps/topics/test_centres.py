"""Clusters of vectors, compared with the rule applied one vector at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.topics.centres import Centres


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def clumps(seed: int, count: int = 60, width: int = 8, centres: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return unit(
        rng.normal(size=(centres, width))[rng.integers(centres, size=count)]
        + rng.normal(size=(count, width)) * 0.25
    )


def assign(
    centres: Centres, vectors: np.ndarray, weights: list[float], blocks: int, threshold: float = 0.7
) -> list[int]:
    rows: list[int] = []
    names = iter(range(10**6))
    for start in range(0, len(vectors), blocks):
        part = slice(start, start + blocks)
        centres.assign(
            vectors[part], weights[part], start, threshold=threshold, name=lambda: next(names),
            joined=lambda index, row, similarity: rows.append(int(centres.ids[row])),
        )  # fmt: skip
    return rows


HALF_LIFE = 5.0


def one_by_one(
    vectors: np.ndarray, weights: list[float], recency: float, threshold: float = 0.7
) -> list[int]:
    sums: list[np.ndarray] = []
    last: list[int] = []
    rows = []
    for index, (vector, weight) in enumerate(zip(vectors.astype(np.float64), weights, strict=True)):
        if not vector.any():
            continue
        bonus = [recency * 0.5 ** ((index - each) / HALF_LIFE) for each in last]
        cosines = [float(each @ vector / np.linalg.norm(each) / np.linalg.norm(vector)) for each in sums]
        scores = [one + other for one, other in zip(cosines, bonus, strict=True)]
        row = int(np.argmax(scores)) if scores and max(scores) >= threshold else len(sums)
        if row == len(sums):
            sums.append(np.zeros_like(vector))
            last.append(index)
        sums[row] = sums[row] + weight * vector
        last[row] = index
        rows.append(row)
    return rows


@given(st.integers(0, 10_000), st.sampled_from([1, 7, 64]), st.sampled_from([0.0, 0.2]))
def test_block_is_placed_as_if_one_by_one(seed: int, blocks: int, recency: float) -> None:
    vectors = clumps(seed)
    vectors[::7] = 0
    vectors[1::5] *= np.float32(0.5)
    weights = [1 / (1 + index % 3) for index in range(len(vectors))]
    centres = Centres(8, recency=recency, recency_texts=HALF_LIFE)
    assert assign(centres, vectors, weights, blocks) == one_by_one(vectors, weights, recency)


def test_of_two_clusters_as_near_the_recent_one_is_joined() -> None:
    corners, between = unit(np.eye(2)), unit(np.array([[1, 1]]))
    for first in (0, 1):
        centres = Centres(2, recency=0.2, recency_texts=HALF_LIFE)
        order = corners if first == 0 else corners[::-1]
        assert assign(centres, np.concatenate([order, between]), [1] * 3, 3, threshold=0.75) == [0, 1, 1]


def test_a_cluster_without_new_vectors_needs_more_similarity() -> None:
    vectors = unit(np.concatenate([[[1, 0, 0]], np.tile([0, 0, 1], (50, 1)), [[0.6, 0.8, 0]]]))
    for recency, row in ((0.0, 0), (0.2, 2)):
        centres = Centres(3, recency=recency, recency_texts=HALF_LIFE)
        threshold = 0.55 + recency
        assert assign(centres, vectors, [1] * 52, 64, threshold=threshold)[-1] == row


def test_zero_vectors_are_skipped() -> None:
    centres = Centres(4)
    vectors = np.zeros((3, 4), np.float32)
    vectors[1, 0] = 1
    assert assign(centres, vectors, [1, 1, 1], 3) == [0]
    assert centres.live == 1


def two_halves() -> Centres:
    """Four clusters; the first and third, and the second and fourth, are neighbours."""
    centres = Centres(4)
    vectors = unit(
        np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0.5, 0, 0], [0, 1, 0.4, 0], [1, 0.5, 0, 0]], np.float64)
    )
    assert assign(centres, vectors, [1] * 5, 5, threshold=0.95) == [0, 1, 2, 3, 2]
    return centres


def test_most_similar_clusters_merge_first_into_the_larger() -> None:
    centres = two_halves()
    merged: list[tuple[int, int]] = []
    centres.merge(0.85, 0, lambda kept, gone: merged.append((int(centres.ids[kept]), int(centres.ids[gone]))))
    assert [set(pair) for pair in merged] == [{1, 3}, {0, 2}]
    assert sorted(centres.texts.tolist()) == [2, 3]
    assert np.linalg.norm(centres.directions(), axis=1) == pytest.approx([1, 1], abs=1e-5)


def test_only_clusters_with_new_texts_are_checked() -> None:
    centres = two_halves()
    centres.merge(0.85, 5, lambda kept, gone: pytest.fail("nothing is new"))
    centres.merge(0.85, 3, lambda kept, gone: None)
    assert centres.live == 2


@given(st.integers(0, 10_000), st.floats(0.3, 0.9))
def test_no_two_centres_are_similar_after_merging(seed: int, threshold: float) -> None:
    centres = Centres(8)
    vectors = clumps(seed)
    assign(centres, vectors, [1] * len(vectors), 64, threshold=0.9)
    centres.merge(threshold, 0, lambda kept, gone: None)
    cosines = centres.directions() @ centres.directions().T
    np.fill_diagonal(cosines, -1)
    assert cosines.max(initial=-1) < threshold + 1e-5
    assert centres.texts.sum() == len(vectors)


def test_scaling_keeps_centres_and_raises_the_weight_of_new_texts() -> None:
    centres = two_halves()
    before = centres.directions().copy()
    centres.scale(1e-3)
    assert centres.directions() == pytest.approx(before, abs=1e-6)
    assign(centres, unit(np.array([[1, 0.2, 0, 0]])), [1], 1, threshold=0.9)
    assert (centres.directions() @ unit(np.array([[1, 0.2, 0, 0]]))[0]).max() > 0.9999


def test_clusters_continue_from_saved_state() -> None:
    centres = two_halves()
    other = Centres.restore(centres.state())
    vectors = clumps(3)[:, :4]
    for each in (centres, other):
        assign(each, unit(vectors), [1] * len(vectors), 16)
    assert centres.state() == other.state()
