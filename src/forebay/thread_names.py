"""Thread names that the system shows, in `top -H` and in CPU statistics."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path


def name_thread(name: str) -> None:
    """Name the calling thread in the kernel; Linux keeps 15 characters, elsewhere nothing happens.

    Python before 3.14 does not set kernel names itself: threads inherit the name of their creator.
    """
    with suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
