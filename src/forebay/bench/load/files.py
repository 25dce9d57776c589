"""Prompts from files: JSON lines, and conversations in ShareGPT's format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import orjson

from forebay.bench.load.schedules import MAX_REQUESTS
from forebay.bench.load.workloads import MAX_TOKENS, Lengths
from forebay.bench.records import LoadRequest
from forebay.documents import suggestion
from forebay.errors import SettingError
from forebay.untrusted_text import quoted_value

MAX_FILE_BYTES = 1 << 30
MAX_LINE_BYTES = 64 << 20
MAX_NAME_CHARS = 200
CHARS_PER_TOKEN = 4
KEYS = ("prompt", "output_tokens", "exact", "session", "group")
ASKERS, ANSWERERS = ("human", "user"), ("gpt", "chatgpt", "bing", "bard", "assistant", "model")


class BadEntry(Exception): ...


@dataclass(frozen=True, slots=True)
class FilePrompts:
    """The requests of a file, without the nonce: a second run may find them cached."""

    kind: str
    source: str
    found: tuple[LoadRequest, ...]
    shuffled: bool = False

    def requests(self, count: int, *, seed: int, nonce: str) -> list[LoadRequest]:
        if count > len(self.found):
            raise SettingError(f"{self.source} holds {len(self.found)} requests, and {count} were asked for")
        taken = Random(f"order {seed}").sample(self.found, count) if self.shuffled else self.found[:count]
        return [replace(one, index=index) for index, one in enumerate(taken)]

    def asked(self) -> dict[str, Any]:
        return {"kind": self.kind, "source": self.source}


def read_prompts(
    path: Path, output: Lengths | None = None, *, exact: bool = True, seed: int = 0
) -> FilePrompts:
    """Read JSON lines with the `KEYS`; `output` and `exact` are defaults.

    Raises `SettingError` with the line number, also for files over 1 GiB, lines over 64 MiB and over 5
    million requests.
    """
    random = Random(f"lengths {seed}")

    def request(index: int, line: bytes) -> LoadRequest:
        found = _object(line)
        _check_keys(found)
        prompt, session = found.get("prompt"), _name(found, "session")
        ids = isinstance(prompt, list) and all(type(id) is int and 0 <= id < 1 << 31 for id in prompt)
        if not prompt or not (isinstance(prompt, str) or ids):
            raise BadEntry(f"prompt: expected a text or a list of token ids, found {quoted_value(prompt)}")
        tokens = found.get("output_tokens")
        if tokens is None and output is not None:
            tokens = output.draw(random)
        if type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS:
            raise BadEntry(f"output_tokens: expected 1 to {MAX_TOKENS}, found {quoted_value(tokens)}")
        asked_exact = found.get("exact", exact)
        if not isinstance(asked_exact, bool):
            raise BadEntry(f"exact: expected true or false, found {quoted_value(asked_exact)}")
        length = None if isinstance(prompt, str) else len(prompt)
        return LoadRequest(index, None, prompt, tokens, asked_exact, length, _name(found, "group"), session)

    return FilePrompts("jsonl", path.name, tuple(_read_lines(path, request)))


def read_conversations(
    path: Path, output: Lengths | None = None, *, exact: bool = False, seed: int = 0
) -> FilePrompts:
    """Read a ShareGPT-style file, a JSON array or JSON lines; the first question is the prompt.

    `output` None: the length of the file's answer, at 4 characters per token. Raises as `read_prompts`.
    """
    random = Random(f"lengths {seed}")

    def request(index: int, entry: Any) -> LoadRequest | None:
        turns = _turns(entry)
        if len(turns) < 2 or turns[0][0] not in ASKERS or turns[1][0] not in ANSWERERS:
            return None
        if not turns[0][1].strip() or not turns[1][1].strip():
            return None
        tokens = output.draw(random) if output else max(1, len(turns[1][1]) // CHARS_PER_TOKEN)
        return LoadRequest(index, None, turns[0][1], min(tokens, MAX_TOKENS), exact)

    if _first_byte(path) == b"[":
        found = tuple(_read_array(path, request))
    else:
        found = tuple(_read_lines(path, lambda index, line: request(index, _object(line))))
    return FilePrompts("sharegpt", path.name, found, shuffled=True)


def _turns(entry: Any) -> list[tuple[str, str]]:
    if not isinstance(entry, dict):
        raise BadEntry(f"expected an object, found {quoted_value(entry)}")
    for field, who, what in (("conversations", "from", "value"), ("messages", "role", "content")):
        if field in entry:
            turns = entry[field]
            if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
                raise BadEntry(f"{field}: expected a list of turns, found {quoted_value(turns)}")
            texts = [(turn.get(who), turn.get(what)) for turn in turns[:2]]
            for asker, text in texts:
                if not isinstance(asker, str) or not isinstance(text, str):
                    raise BadEntry(f"{field}: expected turns with the texts {who} and {what}")
            return texts
    raise BadEntry("expected conversations or messages")


def _first_byte(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}") from None


def _read_array(path: Path, request: Any) -> Iterator[LoadRequest]:
    _check_size(path)
    try:
        entries = orjson.loads(path.read_bytes().lstrip(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise SettingError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    if len(entries) > MAX_REQUESTS:
        raise SettingError(f"{path} holds more than {MAX_REQUESTS} conversations; split it")
    none = True
    for number, entry in enumerate(entries, 1):
        try:
            made = request(number - 1, entry)
        except BadEntry as error:
            raise SettingError(f"{path}, conversation {number}: {error}") from None
        if made is not None:
            none = False
            yield made
    if none:
        raise SettingError(f"{path} holds no request")


def _read_lines(path: Path, request: Any) -> Iterator[LoadRequest]:
    _check_size(path)
    count = 0
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise SettingError(f"{path}, line {number} is longer than {MAX_LINE_BYTES} bytes")
            stripped = line.lstrip(b"\xef\xbb\xbf").strip()
            if not stripped:
                continue
            try:
                made = request(count, stripped)
            except BadEntry as error:
                raise SettingError(f"{path}, line {number}: {error}") from None
            if made is None:
                continue
            count += 1
            if count > MAX_REQUESTS:
                raise SettingError(f"{path} holds more than {MAX_REQUESTS} requests; split it")
            yield made
    if count == 0:
        raise SettingError(f"{path} holds no request")


def _check_size(path: Path) -> None:
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}") from None
    if size > MAX_FILE_BYTES:
        raise SettingError(f"{path} has {size} bytes, more than {MAX_FILE_BYTES}; split it")


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise BadEntry(f"expected a JSON object, found {quoted_value(line)}")
    return found


def _check_keys(found: dict[str, Any]) -> None:
    for key in found:
        if key not in KEYS:
            fix = suggestion(key, KEYS) or f"; a line may have {', '.join(KEYS)}"
            raise BadEntry(f"unknown key {quoted_value(key)}{fix}")


def _name(found: dict[str, Any], name: str) -> str | None:
    value = found.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > MAX_NAME_CHARS):
        raise BadEntry(
            f"{name}: expected a text of at most {MAX_NAME_CHARS} characters, found {quoted_value(value)}"
        )
    return value
