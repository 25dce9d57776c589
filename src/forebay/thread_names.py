"""Names of threads that the system knows, too: in `top -H`, and where their processor time is told."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path


def name_thread(name: str) -> None:
    """Have the system call the thread that asks so; Linux keeps the first 15 characters. Python before 3.14
    names its threads for itself alone: for the system they have the name of the thread that started them.

    On Linux; elsewhere nothing happens.
    """
    with suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
