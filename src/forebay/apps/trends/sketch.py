"""Decayed counts of any number of terms in constant memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.detect.rates import Doubles
from forebay.detect.samples import Keys

ROWS = 3
# Odd factors of multiply-shift hashing (Dietzfelbinger et al. 1997), one per row.
FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
MOST_DOUBLINGS = 60


class RateSketch:
    """A count-min sketch (Cormode and Muthukrishnan 2005) whose counts decay, once per half-life.

    Decay is forward (Cormode et al. 2009): an entry is added with a weight that grows with its tick, so that
    nothing need be touched as time passes. Each read count is at least the true decayed count; by how much it
    is more depends on what shares its cells. Sketches of one form add up to the sketch of both streams.
    """

    def __init__(self, half_lives: Sequence[float], *, width_bits: int = 18) -> None:
        """`half_lives` in ticks. Memory: 12 bytes x 2^`width_bits` per half-life."""
        self.half_lives = tuple(half_lives)
        self._bits = width_bits
        self._cells = np.zeros((len(self.half_lives), ROWS, 1 << width_bits), np.float32)
        self._totals = np.zeros(len(self.half_lives))
        self._start = np.zeros(len(self.half_lives), np.int64)
        self._tick: int | None = None

    @property
    def nbytes(self) -> int:
        return int(self._cells.nbytes)

    def advance(self, tick: int) -> None:
        """Make `tick` the present. The first call sets where time starts; going back does nothing."""
        if self._tick is None:
            self._start[:] = tick
            self._tick = tick
        self._tick = max(self._tick, tick)
        for index, half_life in enumerate(self.half_lives):
            doublings = (self._tick - int(self._start[index])) / half_life
            if doublings > MOST_DOUBLINGS:
                factor = 0.5 ** min(doublings, 1000.0)
                self._cells[index] *= np.float32(factor)
                self._totals[index] *= factor
                self._start[index] = self._tick

    def places(self, keys: Keys) -> npt.NDArray[np.int64]:
        """The cells of the keys: rows of the sketch by keys."""
        spread = keys.astype(np.uint64)[None, :] * FACTORS[:, None]
        return (spread >> np.uint64(64 - self._bits)).astype(np.int64)

    def add(self, places: npt.NDArray[np.int64], counts: npt.ArrayLike, total: float) -> None:
        """Count terms in the present tick, in which `total` posts came."""
        amounts = np.asarray(counts, np.float64)
        for index, weight in enumerate(self._weights()):
            for row in range(ROWS):
                np.add.at(self._cells[index, row], places[row], (amounts * weight).astype(np.float32))
            self._totals[index] += total * weight

    def read(self, places: npt.NDArray[np.int64]) -> Doubles:
        """Decayed counts: half-lives by rows by keys."""
        found = np.empty((len(self.half_lives), *places.shape))
        for index, weight in enumerate(self._weights()):
            for row in range(ROWS):
                found[index, row] = self._cells[index, row, places[row]]
            found[index] /= weight
        return found

    def totals(self) -> Doubles:
        """Decayed numbers of posts, one per half-life."""
        return self._totals / self._weights()

    def _weights(self) -> Doubles:
        tick = 0 if self._tick is None else self._tick
        return np.asarray(2.0 ** ((tick - self._start) / np.asarray(self.half_lives)), np.float64)

    def __iadd__(self, other: RateSketch) -> RateSketch:
        """Add another sketch of the same form; the present is then the later of the two."""
        if (self.half_lives, self._bits) != (other.half_lives, other._bits):
            raise ValueError("sketches of different forms do not add up")
        if other._tick is None:
            return self
        self.advance(other._tick)
        # What weighs 1 in the other began at its start: here it weighs what its tick's entries weigh.
        factors = 2.0 ** ((other._start - self._start) / np.asarray(self.half_lives))
        for index, factor in enumerate(factors):
            self._cells[index] += other._cells[index] * np.float32(factor)
            self._totals[index] += other._totals[index] * factor
        return self

    def state(self) -> list[Any]:
        """What `restore` takes; values that msgpack knows."""
        return [
            list(self.half_lives), self._bits, self._tick, self._start.tolist(), self._totals.tolist(),
            self._cells.tobytes(),
        ]  # fmt: skip

    @classmethod
    def restore(cls, state: Sequence[Any]) -> RateSketch:
        half_lives, bits, tick, start, totals, cells = state
        self = cls(half_lives, width_bits=bits)
        self._tick = tick
        self._start = np.array(start, np.int64)
        self._totals = np.array(totals)
        self._cells = np.frombuffer(cells, np.float32).reshape(self._cells.shape).copy()
        return self
