"""Where figures come from: machine, versions, model, data and command, without secrets."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson
import psutil

from forebay.bench.resources import gpus
from forebay.engine.launch.dtype import read_processor
from forebay.secret_text import SECRET_OPTION, SECRET_SETTING, SECRET_TEXT, URL

HIDDEN = "[hidden]"
PACKAGES = ("forebay", "aiohttp", "httptools", "orjson", "uvloop")
HASHED_AT_ONCE = 1 << 20
MAX_WORD_CHARS = 500
INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "sve", "asimd")
"""Widest first: each may make an engine several times as fast as the next."""


def provenance(
    *,
    command: Sequence[str],
    target: str | None = None,
    model: str | None = None,
    tokenizer: str | None = None,
    engine_version: str | None = None,
    processes: Mapping[str, int] | None = None,
    seed: int | None = None,
    data: Path | None = None,
    secrets: Iterable[str] = (),
) -> dict[str, Any]:
    """The origin of a run as JSON values, without secrets and environment variables.

    `processes`: process numbers by name, for their command lines. `data`: a file, by name and SHA-256.
    """
    known = tuple(secrets)
    lines = {name: command_of(pid, known) for name, pid in (processes or {}).items()}
    lines = {name: line for name, line in lines.items() if line is not None}
    found: dict[str, Any] = {
        "command": hidden_command(command, known),
        "target": None if target is None else hidden(target, known),
        "model": model,
        "tokenizer": tokenizer,
        "engine_version": engine_version,
        "processes": lines or None,
        "seed": seed,
        "data": None if data is None else data.name,
        "data_sha256": None if data is None else file_hash(data),
        "machine": machine(),
        "versions": versions(),
    }
    return {name: value for name, value in found.items() if value is not None}


def machine() -> dict[str, Any]:
    found, processor = gpus(), read_processor()
    return {
        "processor": processor.name or platform.processor() or platform.machine(),
        "instructions": widest(processor.features),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpus": [gpu.name for gpu in found],
        "gpu_driver": found[0].driver if found else None,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def widest(features: frozenset[str]) -> str | None:
    return next((name for name in INSTRUCTIONS if name in features), None)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def command_of(pid: int, secrets: Iterable[str] = ()) -> str | None:
    """Secrets are hidden; None if it cannot be read."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return None
    return hidden_command(words, secrets) if words else None


def file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(HASHED_AT_ONCE):
            digest.update(block)
    return digest.hexdigest()


def hidden_command(words: Sequence[str], secrets: Iterable[str] = ()) -> str:
    """A shell command line without secret options, likely keys, users and queries of URLs, and `secrets`."""
    found: list[str] = []
    # An option may have several values, up to the next word that begins with two dashes.
    first = more = False
    known = tuple(secrets)
    for word in words:
        option, equals, _ = word.partition("=")
        if more and not word.startswith("--" if first else "-"):
            found.append(HIDDEN)
            first = False
            continue
        first = more = False
        if SECRET_OPTION.match(option):
            found.append(option + (f"={HIDDEN}" if equals else ""))
            first = more = not equals
        else:
            found.append(hidden(word, known))
    return shlex.join(found)


def hidden(text: str, secrets: Iterable[str] = ()) -> str:
    for secret in secrets:
        if secret:
            text = text.replace(secret, HIDDEN)
    if setting := SECRET_SETTING.match(text):
        return setting[0] + HIDDEN
    option, equals, value = text.rpartition("=") if text.startswith("--") else ("", "", text)
    if value[:1] in "{[":
        text = option + equals + _hidden_json(value)
    text = SECRET_TEXT.sub(HIDDEN, URL.sub(_plain_url, text))
    return text if len(text) <= MAX_WORD_CHARS else text[:MAX_WORD_CHARS] + "…"


def _hidden_json(text: str) -> str:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    public = _without_secrets(found)
    return text if public == found else orjson.dumps(public).decode()


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(one) for one in value]
    if isinstance(value, dict):
        return {
            key: HIDDEN if SECRET_SETTING.match(f"{key}=") else _without_secrets(one)
            for key, one in value.items()
        }
    return value


def _plain_url(found: re.Match[str]) -> str:
    try:
        parts = urlsplit(found[0])
    except ValueError:
        return HIDDEN
    place = parts.netloc.rpartition("@")
    user = f"{HIDDEN}@" if place[1] else ""
    return urlunsplit((parts.scheme, user + place[2], parts.path, HIDDEN if parts.query else "", ""))
