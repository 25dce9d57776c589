"""How many threads a replica computes with, and how they wait for each other on a machine that is shared.

Threads that compute one product wait for each other thousands of times a second. Where one of them has lost
its core to another program, those that spin meanwhile take the cores that it needs, and those that sleep
are slow to wake. Measured (docs/how-to/engine.md): Intel's OpenMP runtime, whose threads spin for at most a
millisecond here and give way meanwhile, not bound to cores, is close to the fastest, idle and busy.
"""

from __future__ import annotations

from pathlib import Path

FREE_FROM = 4
"""From so many processor cores on, one is left to Flink, the server and whatever else runs."""
SPIN_MS = 1
RUNTIME = Path("lib", "libiomp5.so")


def thread_count(cores: int, quota: int | None = None) -> int:
    """The threads for a replica that has `cores` processor cores, and a container's `quota` of their time."""
    count = cores - 1 if cores >= FREE_FROM else cores
    return max(1, count if quota is None else min(count, quota))


def compute_environment(python: Path, threads: int) -> dict[str, str]:
    """The environment that makes a vLLM of the environment around `python` compute with `threads` threads.

    Without Intel's runtime, which exists for x86 only, threads sleep while they wait.
    """
    chosen = {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Scheduler and model in one process. In two, each spins on shared memory while it waits for the
        # other, on cores that the model needs, and the second takes seconds more to start.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    runtime = python.parent.parent / RUNTIME
    if runtime.is_file():
        return {**chosen, "LD_PRELOAD": str(runtime), "KMP_BLOCKTIME": str(SPIN_MS)}
    return {**chosen, "OMP_WAIT_POLICY": "passive"}
