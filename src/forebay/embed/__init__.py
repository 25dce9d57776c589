"""What turns texts into vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forebay.embed.minilm import MiniLM

Floats = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Vectors of length 1, one row per text in their order; the same for the same texts in the same calls."""

    @property
    def width(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> Floats: ...


OpenEmbedder = Callable[[], Embedder]
"""Opens an embedder where it is used. Must be picklable."""


@dataclass(frozen=True, slots=True)
class OpenMiniLM:
    """all-MiniLM-L6-v2 in `model`, on `threads` threads. Raises `SetupError` where the folder holds none.

    It remembers no texts: after a restore the same texts must have the very same vectors.
    """

    model: Path
    threads: int = 2

    def __call__(self) -> Embedder:
        return MiniLM(self.model, threads=self.threads, remembered=0)


class NoEmbedding:
    """No meaning at all: vectors of no numbers. Texts are then alike by their words alone."""

    width = 0

    def embed(self, texts: Sequence[str]) -> Floats:
        return np.zeros((len(texts), 0), np.float32)
