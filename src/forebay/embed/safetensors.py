"""Reading the safetensors format: a length, a JSON header, and the tensors' bytes one after another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

MAX_HEADER_BYTES = 16 << 20


def read_tensors(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """All float32 tensors of a file by their names.

    Raises `OSError` where it cannot be read, `ValueError` where it is not what it should be.
    """
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if not 0 < length <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError(f"{path.name} is no safetensors file: its header has {length} bytes")
    header = orjson.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"]).copy()
    return tensors
