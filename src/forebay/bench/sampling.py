"""Samples figures during a load, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType

from forebay.bench.records import EngineSample
from forebay.errors import ForebayError

EVERY_S = 1.0
END_S = 30.0
"""How long leaving the block waits for a slow source."""

Source = Callable[[], Mapping[str, float]]
"""Returns figures by name. May block; called in a thread."""


class Sampler:
    """Reads all sources every `every_s`, at least once before the block's work and once after it.

    A source that raises `OSError` or a `ForebayError` gives nothing at that moment.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        every_s: float = EVERY_S,
        now_s: Callable[[], float] = time.time,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._sources = sources
        self._every_s = every_s
        self._now_s = now_s
        self._wait = wait
        self._ended = threading.Event()
        self._seen: list[tuple[float, Mapping[str, float]]] = []
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)

    def samples(self, began_at: str) -> tuple[EngineSample, ...]:
        """The samples, in seconds after this wall-clock moment: the `began_at` of a run."""
        began_s = datetime.fromisoformat(began_at).timestamp()
        return tuple(EngineSample(at_s - began_s, values) for at_s, values in self._seen if values)

    def __enter__(self) -> Sampler:
        self._read()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        while not self._wait(self._ended, self._every_s):
            self._read()
        self._read()

    def _read(self) -> None:
        found: dict[str, float] = {}
        at_s = self._now_s()
        for source in self._sources:
            try:
                found.update(source())
            except (OSError, ForebayError):
                continue
        self._seen.append((at_s, found))
