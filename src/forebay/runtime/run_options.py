"""How a run differs from what the pipeline's file says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forebay.runtime.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How this run differs from what the file says.

    `fresh` forgets the pipeline's checkpoints, and adds its results to those that the sink holds.
    `from_checkpoint` is a checkpoint to resume from in place of the one that the record names: what was
    committed after it comes again. `cluster` is the `HOST:PORT` of a running Flink. `enough` is asked after
    each look at the job: once it is true, the job completes what it has read, commits it and ends.
    `in_process`: Flink runs in this process's own JVM, and where that is lost, the run ends.
    """

    fresh: bool = False
    from_checkpoint: Path | None = None
    cluster: str | None = None
    enough: Callable[[Snapshot], bool] = lambda now: False
    in_process: bool = False
