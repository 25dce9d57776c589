"""One replica as a pipeline's engine, without admission."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.engine.client import HttpEngine


@dataclass(frozen=True, slots=True)
class HttpEngineFactory:
    url: str

    def __call__(self) -> HttpEngine:
        return HttpEngine(self.url)
