"""Texts as vectors of their words, weighted by how telling each word is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.detect.samples import Keys, distinct_words, keys_of

Floats = npt.NDArray[np.float32]

TABLE = 1 << 16
"""Counters of words; words that share one count together."""
SMOOTHING = 50.0
"""Texts that are taken as seen before the first: the weights of a young stream differ less."""
LEAST_WEIGHT = 0.05


class Lexicon:
    """Words to vectors: `width` signed places by hash (feature hashing, Weinberger et al. 2009), each word
    weighted by its inverse document frequency so far (Spärck Jones 1972), the vector scaled to length 1.

    A text counts for `share` of a document (`learn`): copies, and further texts of a large cluster, tell less
    of how common a word is. What was learned takes effect with `settle`, and old counts fade by `fade`.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._counts = np.zeros(TABLE, np.float64)
        self._documents = 0.0
        self._pending: list[tuple[Keys, float]] = []

    def keys(self, text: str) -> Keys:
        """Its distinct words' keys."""
        return keys_of(distinct_words(text))

    def vectors(self, texts: Sequence[Keys]) -> Floats:
        """One row per text; zeros where it has no words."""
        vectors = np.zeros((len(texts), self.width), np.float32)
        keys = np.concatenate(texts) if texts else np.zeros(0, np.uint32)
        rows = np.repeat(np.arange(len(texts)), [len(each) for each in texts])
        seen = self._counts[keys % TABLE]
        weights = np.maximum(np.log((self._documents + SMOOTHING) / (seen + 1)), LEAST_WEIGHT)
        signs = np.where((keys >> np.uint32(16)) & 1, 1.0, -1.0)
        np.add.at(vectors, (rows, (keys >> np.uint32(17)) % self.width), (weights * signs).astype(np.float32))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.where(lengths > 0, lengths, 1)
        return vectors

    def learn(self, keys: Keys, share: float) -> None:
        """Count a text as `share` of a document, from the next `settle` on."""
        self._pending.append((keys, share))

    def settle(self) -> None:
        for keys, share in self._pending:
            self._counts[keys % TABLE] += share
            self._documents += share
        self._pending.clear()

    def fade(self, factor: float) -> None:
        """Multiply all counts by `factor`."""
        self._counts *= factor
        self._documents *= factor

    def state(self) -> list[Any]:
        """What `restore` takes; values that msgpack knows."""
        pending = [[keys.tobytes(), share] for keys, share in self._pending]
        return [self.width, self._documents, self._counts.tobytes(), pending]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Lexicon:
        width, documents, counts, pending = state
        self = cls(width)
        self._documents = documents
        self._counts = np.frombuffer(counts, np.float64).copy()
        self._pending = [(np.frombuffer(keys, np.uint32), share) for keys, share in pending]
        return self
