"""Recorded requests: Mooncake's JSON lines and Azure's CSV, read line by line within bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any

import orjson

from forebay.errors import SettingError
from forebay.untrusted_text import quoted_value

MAX_LINE_BYTES = 1 << 20
MAX_REQUESTS = 5_000_000
MAX_TOKENS = 10_000_000
MAX_SECONDS = 1e9
MAX_HASH = 1 << 60

MOONCAKE_BLOCK_TOKENS = 512
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(\+00:00|Z)?")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Arrival in seconds; hashes of whole blocks."""

    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


class BadLine(Exception): ...


def read_trace(path: Path) -> list[TraceRequest]:
    """Read Mooncake's or Azure's format (by the first line), by arrival, the first at 0 s.

    Raises `SettingError` with the line number, also for over 5 million requests.
    """
    try:
        with path.open("rb") as file:
            requests = list(_requests(_lines(file, path), path))
    except OSError as error:
        raise SettingError(f"trace: {path} cannot be read: {error.strerror}") from None
    if not requests:
        raise SettingError(f"trace: {path} holds no request")
    requests.sort(key=lambda request: request.arrived_s)
    start_s = requests[0].arrived_s
    return [
        TraceRequest(one.arrived_s - start_s, one.prompt_tokens, one.output_tokens, one.blocks)
        for one in requests
    ]


def mooncake_request(line: bytes) -> TraceRequest:
    """Only whole blocks count: no cache keeps a partial one. Raises `BadLine`."""
    try:
        found: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise BadLine(f"expected a JSON object, found {quoted_value(line)}") from None
    if not isinstance(found, dict):
        raise BadLine(f"expected a JSON object, found {quoted_value(line)}")
    when_ms = found.get("timestamp")
    if (type(when_ms) is not int and type(when_ms) is not float) or not 0 <= when_ms <= MAX_SECONDS * 1000:
        raise BadLine(f"timestamp: expected milliseconds from 0 to 10^12, found {quoted_value(when_ms)}")
    prompt = _tokens(found.get("input_length"), "input_length")
    hashes = found.get("hash_ids")
    whole, most = prompt // MOONCAKE_BLOCK_TOKENS, -(-prompt // MOONCAKE_BLOCK_TOKENS)
    if not isinstance(hashes, list) or not whole <= len(hashes) <= most:
        raise BadLine(f"hash_ids: expected one per {MOONCAKE_BLOCK_TOKENS} tokens, {most} in all")
    if not all(type(number) is int and 0 <= number < MAX_HASH for number in hashes):
        raise BadLine("hash_ids: expected whole numbers from 0 to 2^60 - 1")
    output = _tokens(found.get("output_length"), "output_length")
    return TraceRequest(when_ms / 1000, prompt, output, tuple(hashes[:whole]))


def azure_request(line: bytes) -> TraceRequest:
    cells = line.decode("utf-8", "replace").strip().split(",")
    if len(cells) != len(AZURE_COLUMNS):
        raise BadLine(f"expected {len(AZURE_COLUMNS)} columns, found {len(cells)}")
    match = AZURE_TIME.fullmatch(cells[0])
    try:
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise BadLine(f"TIMESTAMP: expected YYYY-MM-DD HH:MM:SS.f, found {quoted_value(cells[0])}") from None
    prompt, output = (
        _tokens(int(cell) if cell.isascii() and cell.isdecimal() and len(cell) < 10 else cell, name)
        for cell, name in zip(cells[1:], AZURE_COLUMNS[1:], strict=True)
    )
    return TraceRequest(moment + float(f"0.{match[2] or 0}"), prompt, output)


def _requests(lines: Iterator[tuple[int, bytes]], path: Path) -> Iterator[TraceRequest]:
    parse: Callable[[bytes], TraceRequest] | None = None
    count = 0
    for number, line in lines:
        if parse is None:
            if line.lstrip(b"\xef\xbb\xbf").startswith(b"{"):
                parse = mooncake_request
            elif line.lstrip(b"\xef\xbb\xbf").decode("utf-8", "replace").split(",") == list(AZURE_COLUMNS):
                parse = azure_request
                continue
            else:
                raise SettingError(
                    f"trace: {path}, line {number}: expected a JSON object (Mooncake) or the header "
                    f"{','.join(AZURE_COLUMNS)} (Azure), found {quoted_value(line)}"
                )
        try:
            yield parse(line.lstrip(b"\xef\xbb\xbf"))
        except BadLine as error:
            raise SettingError(f"trace: {path}, line {number}: {error}") from None
        count += 1
        if count > MAX_REQUESTS:
            raise SettingError(f"trace: {path} holds more than {MAX_REQUESTS} requests; split it")


def _lines(file: Any, path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise SettingError(f"trace: {path}, line {number} is longer than {MAX_LINE_BYTES} bytes")
        if stripped := line.strip():
            yield number, stripped


def _tokens(value: object, name: str) -> int:
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise BadLine(f"{name}: expected a whole number from 1 to {MAX_TOKENS}, found {quoted_value(value)}")
    return value


SPREAD = 0.8
"""Sigma of the lognormal lengths: the longest tenth is eight times as long as the shortest."""


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Lognormal lengths of these means; excluding each prompt's prefix, one of `prefixes` shared ones.
    Deterministic."""

    requests: int = 10_000
    rate_per_s: float = 10.0
    prompt_tokens: float = 1000.0
    output_tokens: float = 200.0
    prefixes: int = 0
    prefix_tokens: int = 0
    block_tokens: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.requests < 1 or self.rate_per_s <= 0 or min(self.prompt_tokens, self.output_tokens) < 1:
            raise SettingError(
                "arrivals: expected at least one request, a rate above 0 and mean lengths of at least 1; "
                f"found {self.requests}, {self.rate_per_s:g}, {self.prompt_tokens:g}, {self.output_tokens:g}"
            )

    def make(self) -> list[TraceRequest]:
        random = Random(self.seed)
        whole = self.prefix_tokens // self.block_tokens if self.prefixes else 0
        now_s = 0.0
        made = []
        for _ in range(self.requests):
            group = random.randrange(self.prefixes) if self.prefixes else 0
            prompt = self._length(random, self.prompt_tokens) + (self.prefix_tokens if self.prefixes else 0)
            blocks = tuple(group << 32 | at for at in range(whole))
            made.append(TraceRequest(now_s, prompt, self._length(random, self.output_tokens), blocks))
            now_s += random.expovariate(self.rate_per_s)
        return made

    @staticmethod
    def _length(random: Random, mean: float) -> int:
        return max(1, round(mean * random.lognormvariate(-SPREAD * SPREAD / 2, SPREAD)))
