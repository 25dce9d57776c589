"""Checkpoints as Flink leaves them on disk, without Flink."""

from __future__ import annotations

import os
from pathlib import Path

from forebay.operators.checkpoints import HEADER, MARK, METADATA, NEWEST_VERSION


def complete_checkpoint(job: Path, number: int, *, name: str | None = None) -> Path:
    """A complete checkpoint without state in the folder of a job; it is named `chk-N` or `name`."""
    checkpoint = job / (name or f"chk-{number}")
    checkpoint.mkdir(parents=True, exist_ok=True)
    # As Flink does it: what is there under its name is whole.
    unfinished = checkpoint / f".{METADATA}.inprogress"
    unfinished.write_bytes(HEADER.pack(MARK, NEWEST_VERSION, number))
    os.replace(unfinished, checkpoint / METADATA)
    return checkpoint
