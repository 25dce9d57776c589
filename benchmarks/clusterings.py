"""How well a clustering agrees with a given one, and topics from river's clusterers (an extra)."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt


def _table(gold: Sequence[Hashable], found: Sequence[Hashable]) -> npt.NDArray[np.float64]:
    rows: dict[Hashable, int] = {}
    columns: dict[Hashable, int] = {}
    places = [
        (rows.setdefault(a, len(rows)), columns.setdefault(b, len(columns)))
        for a, b in zip(gold, found, strict=True)
    ]
    table = np.zeros((len(rows), len(columns)))
    for place in places:
        table[place] += 1
    return table


def mutual_information(gold: Sequence[Hashable], found: Sequence[Hashable]) -> float:
    """Normalised mutual information: divided by the arithmetic mean of the two entropies (Strehl
    and Ghosh 2002)."""
    table = _table(gold, found)
    if table.shape in ((0, 0), (1, 1)):
        return 1.0
    joint = table / table.sum()
    rows, columns = joint.sum(axis=1), joint.sum(axis=0)
    seen = joint > 0
    shared = float((joint[seen] * np.log(joint[seen] / np.outer(rows, columns)[seen])).sum())
    entropy = float(-(rows * np.log(rows)).sum() - (columns * np.log(columns)).sum())
    return 2 * shared / entropy if entropy > 0 else 0.0


def adjusted_rand(gold: Sequence[Hashable], found: Sequence[Hashable]) -> float:
    """The adjusted Rand index (Hubert and Arabie 1985): 1 for the same clusters, about 0 for chance."""
    table = _table(gold, found)

    def pairs(counts: npt.NDArray[np.float64]) -> float:
        return float((counts * (counts - 1) / 2).sum())

    both, rows, columns = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    total = pairs(np.array([table.sum()]))
    if total == 0:
        return 1.0
    chance = rows * columns / total
    most = (rows + columns) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)


Floats = npt.NDArray[np.float32]
MISSING = "river is not installed: pip install 'forebay[applications-bench]'"
LIMIT_S = 60.0
"""Processor time after which a clusterer is stopped and scored."""
RADIUS = 0.5
DENSITY_RADIUS = 0.8


def is_installed() -> bool:
    return find_spec("river") is not None


def river_baselines(
    texts: Sequence[str],
    gold: Sequence[Any],
    vectors: Floats,
    ours: Sequence[int],
    note: Callable[[str], None],
    *,
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """TextClust (Assenmacher and Trautmann 2022) over words, and DBSTREAM (Hahsler and Bolaños
    2016) over embeddings, in stream order, each for at most `limit_s`."""
    found = {}
    for name, predict in (("river_textclust", _textclust(texts)), ("river_dbstream", _dbstream(vectors))):
        note(f"topics: {name}")
        clusters: list[int] = []
        began = time.process_time()
        while len(clusters) < len(texts) and time.process_time() - began < limit_s:
            clusters.append(predict(len(clusters)))
        took, count = time.process_time() - began, len(clusters)
        found[name] = {
            **_agreement(gold[:count], clusters),
            "texts": count,
            "texts_per_s": count / max(took, 1e-9),
            "same_texts": _agreement(gold[:count], ours[:count]),
        }
    return found


def _textclust(texts: Sequence[str]) -> Callable[[int], int]:
    from river import cluster, feature_extraction

    words = feature_extraction.BagOfWords(lowercase=True, ngram_range=(1, 1))
    model = cluster.TextClust(
        real_time_fading=False, fading_factor=0.0005, tgap=100, radius=RADIUS, auto_r=True, auto_merge=True
    )

    def predict(index: int) -> int:
        bag = words.transform_one(texts[index])
        model.learn_one(bag)
        return int(model.predict_one(bag) or 0)

    return predict


def _dbstream(vectors: Floats) -> Callable[[int], int]:
    from river import cluster

    model = cluster.DBSTREAM(
        clustering_threshold=DENSITY_RADIUS,
        fading_factor=0.0001,
        cleanup_interval=1000,
        intersection_factor=0.3,
        minimum_weight=1,
    )

    def predict(index: int) -> int:
        values = dict(enumerate(vectors[index].tolist()))
        model.learn_one(values)
        return int(model.predict_one(values))

    return predict


def _agreement(gold: Sequence[Any], found: Sequence[int]) -> dict[str, Any]:
    if not found:
        return {"nmi": 0.0, "ari": 0.0, "clusters": 0, "gold": 0}
    return {
        "nmi": mutual_information(gold, found),
        "ari": adjusted_rand(gold, found),
        "clusters": len(set(found)),
        "gold": len(set(gold)),
    }
