"""Keeps what a run's scaling has learned in a file for the pipeline's next run."""

from __future__ import annotations

from pathlib import Path

from forebay.errors import SettingError
from forebay.files import MAX_STATE_BYTES, read_bytes, write_atomic
from forebay.fleet.autoscale.memory import KEEP_S, Memory

LEARNED = "learned.json"


class LearnedFile:
    """A `Memory` in the pipeline's own folder. `problems`: unusable parts of the file, one line each; they
    are learned again.
    """

    def __init__(self, folder: Path, memory: Memory, now_s: float) -> None:
        self._path = folder / LEARNED
        self._memory = memory
        self._saved_s = now_s
        self._unwritten: bytes | None = None
        self.problems = self._recall()

    def save_if_due(self, now_s: float, at_ms: int) -> None:
        """Save at most once in `KEEP_S`."""
        if now_s - self._saved_s >= KEEP_S:
            self._saved_s = now_s
            self.save(at_ms)

    def save(self, at_ms: int) -> None:
        """Replace the file if anything was learned. Raises `OSError`; the next call retries."""
        self._unwritten = self._memory.save(at_ms) or self._unwritten
        if self._unwritten is not None:
            write_atomic(self._path, self._unwritten)
            self._unwritten = None

    def _recall(self) -> list[str]:
        if not self._path.exists():
            return []
        try:
            found = self._memory.recall(read_bytes(self._path, MAX_STATE_BYTES, "it"))
        except SettingError as error:
            found = [str(error)]
        return [f"the learned scaling state in {self._path} is not used: {why}" for why in found]
