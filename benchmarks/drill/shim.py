"""Simulates a full or slow disk and a changed clock for the processes of a run; the machine is unchanged."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from forebay.errors import SettingError

SOURCE = Path(__file__).with_name("shim.c")
LAYOUT = struct.Struct("=iiq")


def compiler() -> str | None:
    """The C compiler for the shim; None without one, and on other systems than Linux."""
    return (shutil.which("cc") or shutil.which("gcc")) if sys.platform == "linux" else None


class Shim:
    """A preloaded library, and the shared page that controls it. Files under `disk` are on the failing disk.

    Raises `SettingError` if it cannot be built. Changes take effect at once, in every process.
    """

    def __init__(self, folder: Path, disk: Path) -> None:
        cc = compiler()
        if cc is None:
            raise SettingError("a full disk and a set clock need Linux and a C compiler (cc)")
        folder.mkdir(parents=True, exist_ok=True)
        library, control = folder / "shim.so", folder / "control"
        built = subprocess.run(
            [cc, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"],
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            raise SettingError(f"the shim cannot be built: {built.stderr[-500:]}")
        control.write_bytes(bytes(LAYOUT.size))
        with control.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), LAYOUT.size)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FOREBAY_DRILL_CONTROL": str(control),
            "FOREBAY_DRILL_DISK": f"{disk.resolve()}/",
        }
        self._full, self._slow_ms, self._clock_ms = False, 0, 0

    def full(self, full: bool) -> None:
        """Whether every write fails with "No space left on device"."""
        self._full = full
        self._set()

    def slow(self, slow_ms: int) -> None:
        """Delay every write and sync by `slow_ms`."""
        self._slow_ms = slow_ms
        self._set()

    def step_clock(self, by_s: float) -> None:
        self._clock_ms += round(by_s * 1000)
        self._set()

    def close(self) -> None:
        self._page.close()

    def _set(self) -> None:
        self._page[:] = LAYOUT.pack(self._full, self._slow_ms, self._clock_ms)
