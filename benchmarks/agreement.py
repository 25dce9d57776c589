"""How well a clustering agrees with a given one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

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
    """Normalised mutual information: divided by the arithmetic mean of the two entropies (Strehl and Ghosh
    2002).

    1 for equal clusterings up to names, including empty and single ones.
    """
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
