"""The learned state of scaling, as a small JSON document that survives a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from forebay.codec import FORMAT
from forebay.errors import SettingError
from forebay.fleet.autoscale.base import Remembers, ScalingPolicy, Speed
from forebay.fleet.autoscale.settings import ScalingSettings

MAX_PART_BYTES = 1 << 17
"""A larger part is not kept; a season takes at most a sixth of it."""
KEEP_S = 60.0
"""Seconds between two saves."""


class ScalingMemory:
    """Keeps `parts`, by name, if they implement `Remembers`. They may be third-party code: exceptions are
    caught.

    `of` identifies what the state is valid for: with another `of` it is not used.
    """

    def __init__(self, of: Mapping[str, str | float], parts: Mapping[str, object]) -> None:
        self._of = dict(of)
        self._parts = {name: part for name, part in parts.items() if isinstance(part, Remembers)}
        self._saved: dict[str, bytes] = {}

    def save(self, at_ms: int) -> bytes | None:
        """The document; None if nothing has changed since the last one."""
        parts = {name: saved for name, part in self._parts.items() if (saved := _saved(part))}
        if parts == self._saved:
            return None
        self._saved = parts
        fragments = {name: orjson.Fragment(saved) for name, saved in parts.items()}
        return orjson.dumps({"format": FORMAT, "at_ms": at_ms, "of": self._of, "parts": fragments})

    def recall(self, data: bytes) -> list[str]:
        """Restore each part; returns a line for each part that is not used, with the reason."""
        try:
            document = _read(data)
        except SettingError as error:
            return [str(error)]
        if document.get("of") != self._of:
            return [f"it was learned from {str(document.get('of'))[:200]}, not from {self._of}"]
        problems = []
        kept = document.get("parts")
        for name, part in self._parts.items():
            if not isinstance(kept, dict) or name not in kept:
                continue
            try:
                part.recall(kept[name])
            except Exception as error:
                first = (str(error).splitlines() or [""])[0]
                problems.append(f"{name}: {type(error).__name__}: {first[:200]}")
        return problems


def memory_of(
    settings: ScalingSettings, model: str, parts: Mapping[str, object], policy: ScalingPolicy, speed: Speed
) -> ScalingMemory:
    return ScalingMemory(
        holds_for(settings, model), {"speed": speed, f"policy {settings.policy}": policy, **parts}
    )


def holds_for(settings: ScalingSettings, model: str) -> dict[str, str | float]:
    """Learned numbers are valid for replicas of this model, relative to the assumed speed."""
    return {"model": model, "prompt_s": settings.speed.prompt_s, "output_s": settings.speed.output_s}


def saved_ms(data: bytes) -> int:
    try:
        at_ms = _read(data).get("at_ms")
    except SettingError:
        return -1
    return at_ms if isinstance(at_ms, int) else -1


def _read(data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SettingError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise SettingError(f"expected a JSON object, found {type(document).__name__}")
    if document.get("format") != FORMAT:
        raise SettingError(f"expected format {FORMAT}, found {str(document.get('format'))[:20]}")
    return document


def _saved(part: Remembers) -> bytes:
    try:
        saved = orjson.dumps(dict(part.remembers()))
    except Exception:
        return b""
    return saved if len(saved) <= MAX_PART_BYTES else b""
