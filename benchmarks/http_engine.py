"""One replica as a pipeline's engine, which is asked at once for all that it is given."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.engine.client import HttpEngine


@dataclass(frozen=True, slots=True)
class HttpEngineFactory:
    """Opens an `HttpEngine` at `url`."""

    url: str

    def __call__(self) -> HttpEngine:
        return HttpEngine(self.url)
