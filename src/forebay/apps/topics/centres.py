"""Live clusters of unit vectors, and the rule by which a vector joins one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

FIRST_ROWS = 64


class Centres:
    """Clusters as weighted sums of their vectors; a centre is the direction of its sum.

    The rule is that of DDP-vMF-means (Straub et al. 2015): a vector joins the cluster with the greatest
    score, or starts a new one if none reaches the threshold. The score is the cosine plus a bonus for recent
    clusters, `recency`, halved for each `recency_texts` vectors that did not join. `keep` renumbers rows, ids
    never change.
    """

    def __init__(self, width: int, *, recency: float = 0.0, recency_texts: float = 1.0) -> None:
        self.width = width
        self.live = 0
        self._recency = recency
        self._recency_texts = recency_texts
        self._sums = np.zeros((0, width), np.float32)
        self._inverse = np.zeros(0, np.float64)
        self._ids = np.zeros(0, np.int64)
        self._texts = np.zeros(0, np.int64)
        self._last = np.zeros(0, np.int64)

    @property
    def ids(self) -> Numbers:
        return self._ids[: self.live]

    @property
    def texts(self) -> Numbers:
        return self._texts[: self.live]

    @property
    def last(self) -> Numbers:
        return self._last[: self.live]

    def directions(self, rows: npt.ArrayLike | None = None) -> Floats:
        chosen = np.arange(self.live) if rows is None else np.asarray(rows)
        units: Floats = self._sums[chosen] * self._inverse[chosen, None].astype(np.float32)
        return units

    def assign(
        self,
        vectors: Floats,
        weights: Sequence[float],
        first_text: int,
        *,
        threshold: float,
        name: Callable[[], int],
        joined: Callable[[int, int, float], None],
    ) -> None:
        """Assign vectors in order: each joins a cluster or starts one, whose id is `name()`.

        Skips zero vectors. Equivalent to one call per vector, but needs a single matrix product. Calls
        `joined(index, row, cosine)` after each.
        """
        count = len(vectors)
        self._reserve(self.live + count)
        products = np.zeros((count, self.live + count), np.float32)
        products[:, : self.live] = vectors @ self._sums[: self.live].T
        mutual = vectors @ vectors.T
        inverse, sums = self._inverse, self._sums
        fading = 0.5 ** (1 / self._recency_texts)
        bonus = np.zeros(self.live + count)
        bonus[: self.live] = self._recency * 0.5 ** ((first_text - self.last) / self._recency_texts)
        for index in range(count):
            bonus *= fading if index else 1.0
            square = float(mutual[index, index])
            if square < 0.01:
                continue
            weight = weights[index]
            row, cosine, score = self.live, 1.0, -1.0
            if self.live:
                cosines = products[index, : self.live] * (inverse[: self.live] / square**0.5)
                row = int((cosines + bonus[: self.live]).argmax())
                cosine = float(cosines[row])
                score = cosine + float(bonus[row])
            if score < threshold:
                row, cosine = self.live, 1.0
                self.live += 1
                sums[row] = 0
                self._ids[row] = name()
                self._texts[row] = 0
                length_2 = 0.0
            else:
                length_2 = inverse[row] ** -2 + 2 * weight * float(products[index, row])
            length_2 += weight * weight * square
            sums[row] += np.float32(weight) * vectors[index]
            inverse[row] = length_2**-0.5
            products[index + 1 :, row] += np.float32(weight) * mutual[index + 1 :, index]
            self._texts[row] += 1
            self._last[row] = first_text + index
            bonus[row] = self._recency
            joined(index, row, cosine)

    def merge(self, threshold: float, since: int, merged: Callable[[int, int], None]) -> None:
        """Merge pairs of clusters, most similar first, while their cosine reaches `threshold`.

        Considers pairs in which one has a text with number `since` or later; the larger one survives. Calls
        `merged(kept, gone)` with rows before the sums are added.
        """
        touched = np.flatnonzero(self.last >= since)
        if not len(touched):
            return
        units = self.directions()
        cosines = units[touched] @ units.T
        cosines[np.arange(len(touched)), touched] = -1
        gone = np.zeros(self.live, bool)
        place = {int(row): index for index, row in enumerate(touched)}
        best = cosines.max(axis=1)
        while True:
            index = int(best.argmax())
            if best[index] < threshold:
                break
            pair = int(touched[index]), int(cosines[index].argmax())
            kept, other = pair if self._texts[pair[0]] >= self._texts[pair[1]] else pair[::-1]
            merged(kept, other)
            self._sums[kept] += self._sums[other]
            self._inverse[kept] = 1 / np.linalg.norm(self._sums[kept].astype(np.float64))
            self._texts[kept] += self._texts[other]
            self._last[kept] = max(self._last[kept], self._last[other])
            gone[other] = True
            units[kept] = self._sums[kept] * np.float32(self._inverse[kept])
            column = units[touched] @ units[kept]
            column[gone[touched]] = -1
            cosines[:, other] = -1
            cosines[:, kept] = column
            if other in place:
                cosines[place[other]] = -1
            if kept not in place and other in place:
                # The merged cluster takes over the other's line.
                place[kept] = place.pop(other)
                touched[place[kept]] = kept
            if kept in place:
                line = units @ units[kept]
                line[gone] = -1
                line[kept] = -1
                cosines[place[kept]] = line
                cosines[place[kept], kept] = -1
            best = cosines.max(axis=1)
        self.keep(~gone)

    def keep(self, chosen: npt.NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(chosen)
        count = len(rows)
        for array in (self._sums, self._inverse, self._ids, self._texts, self._last):
            array[:count] = array[rows]
        self.live = count

    def scale(self, factor: float) -> None:
        self._sums[: self.live] *= np.float32(factor)
        self._inverse[: self.live] /= factor

    def _reserve(self, rows: int) -> None:
        held = len(self._ids)
        if rows <= held:
            return
        more = max(FIRST_ROWS, rows, 2 * held) - held
        self._sums = np.concatenate([self._sums, np.zeros((more, self.width), np.float32)])
        self._inverse = np.concatenate([self._inverse, np.zeros(more)])
        self._ids, self._texts, self._last = (
            np.concatenate([array, np.zeros(more, np.int64)])
            for array in (self._ids, self._texts, self._last)
        )

    def state(self) -> list[Any]:
        arrays = (self._sums, self._inverse, self._ids, self._texts, self._last)
        kept = (array[: self.live].tobytes() for array in arrays)
        return [self.width, self._recency, self._recency_texts, self.live, *kept]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Centres:
        width, recency, recency_texts, live, sums, inverse, ids, texts, last = state
        self = cls(width, recency=recency, recency_texts=recency_texts)
        self._reserve(live)
        self.live = live
        self._sums[:live] = np.frombuffer(sums, np.float32).reshape(live, width)
        self._inverse[:live] = np.frombuffer(inverse, np.float64)
        self._ids[:live], self._texts[:live], self._last[:live] = (
            np.frombuffer(data, np.int64) for data in (ids, texts, last)
        )
        return self
