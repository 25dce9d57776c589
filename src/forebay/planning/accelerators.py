"""Memory and speed of accelerators, by their makers' data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from forebay.errors import SettingError

GIB = 2**30
SIZE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*(GiB|GB|G)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Memory in bytes, 16-bit arithmetic without sparsity in operations per second, and memory
    bandwidth in bytes per second; 0 if unknown."""

    name: str
    memory: float
    flops: float = 0.0
    bandwidth: float = 0.0
    count: int = 1

    def times(self, count: int) -> Accelerator:
        """`count` of them as one replica, the model split among them (tensor parallelism)."""
        return replace(
            self,
            name=f"{count} x {self.name}" if count > 1 else self.name,
            memory=self.memory * count,
            flops=self.flops * count,
            bandwidth=self.bandwidth * count,
            count=self.count * count,
        )


ACCELERATORS = {
    each.name: each
    for each in (
        Accelerator("t4", 15 * GIB, 65e12, 320e9),
        Accelerator("a10g", 22.5 * GIB, 125e12, 600e9),
        Accelerator("l4", 22.5 * GIB, 121e12, 300e9),
        Accelerator("l40s", 45 * GIB, 362e12, 864e9),
        Accelerator("a100-40gb", 40 * GIB, 312e12, 1555e9),
        Accelerator("a100-80gb", 80 * GIB, 312e12, 2039e9),
        Accelerator("rtx-pro-6000", 95.5 * GIB, 503e12, 1792e9),
        Accelerator("h100", 79.6 * GIB, 989e12, 3350e9),
        Accelerator("h200", 140.4 * GIB, 989e12, 4800e9),
        Accelerator("b200", 179 * GIB, 2250e12, 8000e9),
        Accelerator("mi300x", 192 * GIB, 1307e12, 5300e9),
    )
}


def find_accelerator(text: str) -> Accelerator:
    """The accelerator of this name, or one of which only the memory is known: `40GB`, `24GiB`.

    GB is read as sellers use it: a card of 40 GB has 40 GiB. Raises `SettingError` for anything else.
    """
    known = ACCELERATORS.get(text.lower())
    if known is not None:
        return known
    found = SIZE.fullmatch(text.strip())
    if found is None or not 0 < float(found[1]) <= 100_000:
        raise SettingError(
            f"--accelerator: expected one of {', '.join(ACCELERATORS)}, or its memory such as 40GB; found "
            f"{text[:60]!r}"
        )
    return Accelerator(f"{float(found[1]):g} GB", float(found[1]) * GIB)
