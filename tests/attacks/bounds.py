"""How much time and memory one input may take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_CPU_S = 5.0
MOST_BYTES = 256 << 20
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def within_bounds() -> Iterator[None]:
    """Fails where this thread computes for more than 5 s in it, or the process takes 256 MiB more at a time.

    The time is the processor's, so that a busy machine fails nothing.
    """
    before, begun_s = _peak_bytes(), time.thread_time()
    try:
        yield
    finally:
        spent_s, more = time.thread_time() - begun_s, _peak_bytes(reset=False) - before
    assert spent_s < MOST_CPU_S, f"it took {spent_s:.1f} s of the processor"
    assert more < MOST_BYTES, f"it took {more >> 20} MiB more"


def _peak_bytes(*, reset: bool = True) -> int:
    """The most memory that the process has had since the last reset; 0 where the system does not tell."""
    try:
        if reset:
            CLEAR.write_text("5")
        status = STATUS.read_text()
    except OSError:
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) << 10
