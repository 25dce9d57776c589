"""Measure how fast number types are: `probe_dtype.py THREADS CORES TYPE…` prints JSON, GFLOP/s by type.

Run by path with the engine environment's Python; it imports nothing of Forebay. CORES is a list such as
`0,1`, or `any`. Types take turns in short slices and the best slice counts, so that another program slows all
of them or none.
"""

import json
import os
import sys
import time

ROWS, INPUTS, OUTPUTS = 32, 576, 3072
SLICES, SLICE_S = 6, 0.03


def measure(threads: int, names: list[str]) -> dict[str, float]:
    import torch  # type: ignore[import-not-found]

    torch.set_num_threads(threads)
    best: dict[str, float] = {}
    layers = {}
    with torch.no_grad():
        for name in names:
            try:
                dtype = getattr(torch, name)
                layer = torch.nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=dtype)
                rows = torch.ones(ROWS, INPUTS, dtype=dtype)
                layer(rows)
            except (RuntimeError, AttributeError):
                continue
            layers[name] = layer, rows
        for _ in range(SLICES):
            for name, (layer, rows) in layers.items():
                done, began = 0, time.perf_counter()
                while (took := time.perf_counter() - began) < SLICE_S:
                    layer(rows)
                    done += 1
                speed = 2 * ROWS * INPUTS * OUTPUTS * done / took / 1e9
                best[name] = max(best.get(name, 0.0), round(speed, 1))
    return best


if __name__ == "__main__":
    if sys.argv[2] != "any" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in sys.argv[2].split(",")])
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[3:])))
