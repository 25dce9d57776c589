"""Which of Flink's options a pipeline file may set: not those that decide where state is, what is resumed and
how the job is watched, for with other values a run would lose its place or see nothing of its job."""

from __future__ import annotations

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
