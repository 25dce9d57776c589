"""Replicas that stand in a file, which may be changed at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from forebay.errors import SettingError
from forebay.fleet.replicas.base import checked

MAX_BYTES = 256 << 10


@dataclass(frozen=True)
class FileReplicas:
    """A file of URLs, read every `every_s`: one per line (`#` begins a comment), or a list in YAML or JSON.

    Replace it as a whole (write beside it, then rename): half a list is a list too.
    """

    path: str
    every_s: float = 2.0

    async def urls(self) -> tuple[str, ...]:
        return await asyncio.get_running_loop().run_in_executor(None, read_replicas, Path(self.path))


def read_replicas(path: Path) -> tuple[str, ...]:
    """The URLs in the file; blocks. Raises `SettingError` where it cannot be read or holds none."""
    where = f"replica file {path}"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingError(f"{where} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise SettingError(f"{where} is larger than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(f"{where} is not UTF-8: wrong byte at position {error.start}") from None
    return checked(_entries(text, where), where=where)


def _entries(text: str, where: str) -> Iterable[object]:
    if text.lstrip().startswith("["):
        try:
            value: Any = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise SettingError(f"{where} is no JSON list of URLs: {error}") from None
        return list(value)
    # A list in YAML is lines too, each with a dash and perhaps in quotes.
    lines = (line.split("#", 1)[0].strip().removeprefix("- ").strip(" \t'\"") for line in text.splitlines())
    return [line for line in lines if line]
