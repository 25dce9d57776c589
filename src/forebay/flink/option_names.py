"""The names of Flink's options. Flink says nothing of a name that it does not know."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from forebay.documents.load import suggestion

DATA = Path(__file__).with_name("options.json")
"""Made by `make flink-options` from the Flink that is installed."""
OPEN = (
    "containerized.master.env.",
    "containerized.taskmanager.env.",
    "env.",
    "external-resource.",
    "flink.hadoop.",
    "fs.",
    "gs.",
    "hadoop.",
    "kubernetes.",
    "metrics.reporter.",
    "metrics.scope.variables.",
    "pipeline.global-job-parameters.",
    "presto.",
    "s3.",
    "s3a.",
    "state.backend.",
    "state.changelog.",
    "state.latency-track.",
    "traces.reporter.",
    "events.reporter.",
    "yarn.",
)
"""Where plug-ins, file systems, state backends and reporters have options that only they know."""


@lru_cache(maxsize=1)
def option_names() -> tuple[frozenset[str], tuple[str, ...]]:
    """The names, and the prefixes below which any name is taken; blocks on the file system once."""
    document = json.loads(DATA.read_text(encoding="utf-8"))
    return frozenset(document["options"]), (*OPEN, *(f"{name}." for name in document["maps"]))


def is_option(key: str) -> bool:
    """Whether Flink, or something that is plugged into it, may know an option `key`."""
    names, prefixes = option_names()
    return key in names or key.startswith(prefixes) or any(form.fullmatch(key) for form in _forms())


def _forms() -> Iterator[re.Pattern[str]]:
    """Names with a part that a user chooses, written `<name>`."""
    for name in option_names()[0]:
        if "<" in name:
            yield re.compile(".+".join(map(re.escape, re.split(r"<[^>]*>", name))))


def close_option(key: str) -> str:
    """The option that `key` may have been meant to be, as the end of a message."""
    return suggestion(key, sorted(option_names()[0]))
