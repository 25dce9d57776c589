"""Both later stages of trend detection in one object, for one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import msgpack

from forebay.apps.trends.book import TrendBook
from forebay.apps.trends.rising import RisingTerms
from forebay.apps.trends.values import Counts, TrendEvent, TrendSettings
from forebay.errors import MalformedRecord


class TrendFinder:
    """Trends of the terms of one stream. Not thread-safe. Takes ticks in order, each in any number of parts.

    >>> from forebay.apps.trends.terms import terms_of
    >>> from forebay.apps.trends.stages import TickCounter
    >>> counter, finder = TickCounter(), TrendFinder()
    >>> counter.add(terms_of("big storm over Lisbon #storm"), 12_000)
    >>> for counts in counter.close(watermark_ms=20_000):
    ...     print(finder.add(counts), finder.close())
    [] []
    >>> TrendFinder.from_bytes(finder.to_bytes()).to_bytes() == finder.to_bytes()
    True
    """

    def __init__(self, settings: TrendSettings | None = None) -> None:
        self.settings = settings or TrendSettings()
        self._rising = RisingTerms(self.settings)
        self._book = TrendBook(self.settings)

    @property
    def nbytes(self) -> int:
        """Bytes of the sketch; the settings limit the rest."""
        return self._rising.nbytes

    @property
    def late(self) -> int:
        """Posts whose counts arrived after their tick was closed."""
        return self._rising.late

    def add(self, counts: Counts) -> list[TrendEvent]:
        events = self.close() if self._rising.is_later(counts.tick) else []
        self._rising.add(counts)
        return events

    def close(self) -> list[TrendEvent]:
        report = self._rising.close()
        return [] if report is None else self._book.take(report)

    def finish(self) -> list[TrendEvent]:
        """End all live trends at the end of the stream."""
        return self.close() + self._book.finish()

    def to_bytes(self) -> bytes:
        packed: bytes = msgpack.packb(
            [settings_state(self.settings), self._rising.state(), self._book.state()],
            unicode_errors="surrogatepass",
        )
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> TrendFinder:
        document: Any
        try:
            document = msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
            settings, rising, book = document
            self = cls(settings_of(settings))
            self._rising = RisingTerms.restore(self.settings, rising)
            self._book = TrendBook.restore(self.settings, book)
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise MalformedRecord(f"trends: not a state: {type(error).__name__}: {error}") from None
        return self


def settings_state(settings: TrendSettings) -> list[Any]:
    return [getattr(settings, f.name) for f in fields(TrendSettings)]


def settings_of(values: Sequence[Any]) -> TrendSettings:
    return TrendSettings(*(_tupled(value) for value in values))


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
