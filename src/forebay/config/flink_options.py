"""Which of Flink's options a pipeline file may set: not those that decide where state is, what is resumed and
how the job is watched, for with other values a run would lose its place or see nothing of its job; and none
that Flink does not know, for Flink says nothing of those.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from forebay.documents import suggestion
from forebay.flink.thread_mode import MODE, ONE_MODE

TUNING = tuple(
    f"execution.checkpointing.{name}"
    for name in (
        "aligned-checkpoint-timeout",
        "alignment-timeout",
        "data-inline-threshold",
        "file-merging",
        "incremental",
        "max-concurrent-checkpoints",
        "min-pause",
        "num-retained",
        "snapshot-compression",
        "tolerable-failed-checkpoints",
        "unaligned",
        "write-buffer-size",
    )
)
"""How checkpoints are made, within what is said here of where, when and how exactly."""

_RESUME = "no such key: what a run resumes from is the newest checkpoint under checkpoint.dir"
_CLUSTER = "no such key: a Flink that runs elsewhere is named with --cluster HOST:PORT"
_OPEN = "no such key: what an embedded Flink opens is reached by its own run alone"
_EXACT = "no such key: checkpoints are exactly-once, and kept under checkpoint.dir"

_KEYS = (
    "no such key: keys of an object store are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in a file"
)
STORE_KEYS = ("access-key", "secret-key", "access.key", "secret.key", "session.token")
"""How the keys of an object store are called, which do not belong into a file."""

OWNED: dict[str, str] = {
    "$internal": "no such key: it is Flink's own",
    "execution.attached": _CLUSTER,
    "execution.checkpointing": _EXACT,
    "execution.checkpointing.dir": "the pipeline's key checkpoint.dir",
    "execution.checkpointing.interval": "the pipeline's key checkpoint.interval_s",
    "execution.checkpointing.timeout": "the pipeline's key checkpoint.timeout_s",
    "execution.runtime-mode": "no such key: a pipeline is a stream",
    "execution.savepoint": _RESUME,
    "execution.savepoint-restore-mode": _RESUME,
    "execution.shutdown-on-attached-exit": _CLUSTER,
    "execution.state-recovery": _RESUME,
    "execution.target": _CLUSTER,
    "high-availability": "no such key: it is a setting of a cluster",
    "jobmanager.bind-host": _OPEN,
    "jobmanager.web": _CLUSTER,
    "parallelism.default": "the pipeline's key parallelism",
    "pipeline.jobvertex-parallelism-overrides": "the pipeline's key parallelism",
    "pipeline.max-parallelism": "no such key: it is fixed, for checkpoints are bound to it",
    "pipeline.name": "the pipeline's key name",
    MODE: f"no such key: {ONE_MODE}",
    "rest": _CLUSTER,
    **{f"{prefix}.{key}": _KEYS for prefix in ("s3", "s3a", "fs.s3a") for key in STORE_KEYS},
    "security": _OPEN,
    "state.backend.fs.checkpointdir": "the pipeline's key checkpoint.dir",
    "state.checkpoint-storage": _EXACT,
    "state.checkpoints.create-subdir": _EXACT,
    "state.checkpoints.dir": "the pipeline's key checkpoint.dir",
    "taskmanager.bind-host": _OPEN,
    "taskmanager.host": _OPEN,
    "web": _OPEN,
    "web.address": _CLUSTER,
    "web.port": _CLUSTER,
}
"""Keys that are Forebay's, with all below them, older names included: what to write instead."""


def owned(key: str) -> str | None:
    """What to write in place of Flink's option `key`; None where a pipeline may set it."""
    if any(_is_at(key, tuning) for tuning in TUNING):
        return None
    nearest = max((prefix for prefix in OWNED if _is_at(key, prefix)), key=len, default=None)
    return None if nearest is None else OWNED[nearest]


def _is_at(key: str, prefix: str) -> bool:
    return key == prefix or key.startswith(prefix + ".")


DATA = Path(__file__).with_name("flink_options.json")
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
