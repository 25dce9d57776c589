"""What a run's scaling has learned, kept in a file for the pipeline's next run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from forebay.autoscale.base import Amount, Tokens
from forebay.autoscale.memory import KEEP_S, Memory
from forebay.errors import SettingError
from forebay.files import MAX_STATE_BYTES, read_bytes, write_atomic
from forebay.runtime.snapshot import Backlog

LEARNED = "learned.json"


@dataclass(frozen=True, slots=True)
class CostMemory:
    """Tokens of a record that waits, as last estimated."""

    prompt: Amount
    output: Amount


_MEMORY: TypeAdapter[CostMemory] = TypeAdapter(CostMemory)


class RecordCost:
    """What a record in a topic will cost: as last estimated, in this run or an earlier one; before that
    `assumed` tokens for its prompt, and as many for its answer."""

    def __init__(self, assumed: float) -> None:
        self._each: CostMemory | None = None
        self._assumed = assumed

    def tokens(self, backlog: Backlog) -> Tokens:
        """All that waits, and what it will cost."""
        prompt, output, records = backlog.prompt_tokens, backlog.completion_tokens, backlog.records
        if prompt is not None and output is not None:
            if records:
                self._each = CostMemory(prompt / records, output / records)
            return Tokens(records, prompt, output)
        each = self._each or CostMemory(self._assumed, self._assumed)
        return Tokens(records, round(records * each.prompt), round(records * each.output))

    def remembers(self) -> Mapping[str, object]:
        """What outlives a run, for the same model."""
        return {} if self._each is None else asdict(self._each)

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on with what was remembered. Raises `ValueError` where it is not that, and is then as it was."""
        if memory:
            self._each = _MEMORY.validate_python(memory)


class LearnedFile:
    """A `Memory` in a folder that is the pipeline's own. `problems`: what of the file could not be used, a
    line each; it is learned anew."""

    def __init__(self, folder: Path, memory: Memory, now_s: float) -> None:
        self._path = folder / LEARNED
        self._memory = memory
        self._saved_s = now_s
        self._unwritten: bytes | None = None
        self.problems = self._recall()

    def save_if_due(self, now_s: float, at_ms: int) -> None:
        """`save`, once in `KEEP_S`."""
        if now_s - self._saved_s >= KEEP_S:
            self._saved_s = now_s
            self.save(at_ms)

    def save(self, at_ms: int) -> None:
        """Replace the file, where something was learned since it was last written. Raises `OSError` where
        that cannot be written; the next call tries it again."""
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
        return [f"what scaling had learned in {self._path} is not used: {why}" for why in found]
