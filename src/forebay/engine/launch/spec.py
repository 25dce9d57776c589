"""How a replica is started, and its share of the machine: its cores, memory and threads.

Measured (docs/how-to/engine.md): Intel's OpenMP runtime, with threads that spin for at most a millisecond and
are not bound to cores, is close to the fastest, idle and busy.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from forebay.errors import SettingError
from forebay.untrusted_text import counted

FREE_FROM = 4
"""With this many processor cores or more, one is left to Flink, the server and other programs."""
SPIN_MS = 1
RUNTIME = Path("lib", "libiomp5.so")


def thread_count(cores: int, quota: int | None = None) -> int:
    count = cores - 1 if cores >= FREE_FROM else cores
    return max(1, count if quota is None else min(count, quota))


def compute_environment(python: Path, threads: int) -> dict[str, str]:
    """Without Intel's runtime (x86 only), vLLM's threads sleep while they wait."""
    chosen = {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Scheduler and model in one process. As two, each spins on shared memory while it waits for the
        # other, on cores that the model needs, and the second takes seconds more to start.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    runtime = python.parent.parent / RUNTIME
    if runtime.is_file():
        return {**chosen, "LD_PRELOAD": str(runtime), "KMP_BLOCKTIME": str(SPIN_MS)}
    return {**chosen, "OMP_WAIT_POLICY": "passive"}


CORES = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
LOOPBACK = "127.0.0.1"
AS_MAIN = Path(__file__).with_name("as_main.py")
GIB = 2**30
CGROUP = Path("/sys/fs/cgroup")
TOPOLOGY = Path("/sys/devices/system/cpu")
# The default model's weights, runtime and two Python processes, measured without the KV cache.
OVERHEAD_GIB = 2.0
DEFAULT_WEIGHTS_GIB = 0.25
MIN_KV_GIB, MAX_KV_GIB = 0.5, 2.0
# xgrammar must be named: only a fixed backend may forbid white space, with which small models fill answers.
COMPACT_JSON = '{"backend": "xgrammar", "disable_any_whitespace": true}'
# vLLM's own default on a processor is 128: prefixes shorter than a block are never found in the cache.
BLOCK_TOKENS = 32
CONTEXT_TOKENS = 8192
"""Enough for all applications' defaults. With the default model, a request of that length takes 0.18 GiB of
the KV cache, whose minimum is 0.5 GiB.
"""
API_KEY = "VLLM_API_KEY"


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """How one vLLM replica is started. `extra` comes last in its arguments, and so wins."""

    model: str
    served_name: str
    dtype: str = "bfloat16"
    max_model_len: int = CONTEXT_TOKENS
    max_num_seqs: int = 128
    kv_cache_gib: float = 1.0
    eager: bool = True
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """`withheld`: variables of this process's environment that are removed."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    withheld: frozenset[str] = frozenset()


def vllm_launch(
    python: Path, spec: ReplicaSpec, *, port: int, cores: Sequence[int], threads: int
) -> EngineLaunch:
    command = [
        str(python), "-I", str(AS_MAIN), "vllm.entrypoints.openai.api_server",
        "--model", spec.model,
        "--served-model-name", spec.served_name,
        "--host", LOOPBACK,
        "--port", str(port),
        "--dtype", spec.dtype,
        "--max-model-len", str(spec.max_model_len),
        "--max-num-seqs", str(spec.max_num_seqs),
        "--kv-cache-memory-bytes", str(int(spec.kv_cache_gib * GIB)),
        "--block-size", str(BLOCK_TOKENS),
        "--structured-outputs-config", COMPACT_JSON,
        # A line per request would eventually fill the disk.
        "--disable-uvicorn-access-log",
        # Report with each answer how many tokens the prefix cache held.
        "--enable-prompt-tokens-details",
    ]  # fmt: skip
    environment = {
        "VLLM_NO_USAGE_STATS": "1",
        # By default in a folder of /tmp that any user may create first, and what is in it is executed.
        "TORCHINDUCTOR_CACHE_DIR": str(python.parent.parent / "torch-cache"),
        **compute_environment(python, threads),
    }
    if spec.eager:
        command.append("--enforce-eager")
        # Remaining compilation, such as of the ranks of log probabilities, would block all requests for a
        # quarter of a minute at first use, and needs a C++ compiler.
        environment["TORCH_COMPILE_DISABLE"] = "1"
    if Path(spec.model).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    return EngineLaunch(tuple(command) + spec.extra, environment, tuple(cores))


def parse_cores(text: str) -> tuple[int, ...]:
    """`0-2,5` as core numbers in that order. Raises `SettingError`."""
    cores: list[int] = []
    for part in text.split(","):
        found = CORES.fullmatch(part.strip())
        if found is None:
            raise SettingError(f"cores are {text[:80]!r}; expected numbers and ranges such as 0-3,6")
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            raise SettingError(f"cores {part.strip()} run backwards; write {high}-{low}")
        cores.extend(range(low, high + 1))
    if len(set(cores)) != len(cores):
        raise SettingError(f"cores {text[:80]!r} name a core twice")
    return tuple(cores)


def usable_cores() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def physical_cores(cores: Iterable[int], topology: Path = TOPOLOGY) -> int:
    return len({_siblings(core, topology) for core in cores})


def core_quota(cgroup: Path = CGROUP) -> int | None:
    """The whole cores' time that a container may use, at least 1; None without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return max(1, math.floor(int(quota) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def available_memory_gib(cgroup: Path = CGROUP) -> float:
    available = psutil.virtual_memory().available
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return float(available) / GIB
    return float(min(available, max(0, limit - used))) / GIB


def _siblings(core: int, topology: Path) -> tuple[int, ...]:
    try:
        return parse_cores((topology / f"cpu{core}" / "topology" / "thread_siblings_list").read_text())
    except (OSError, SettingError):
        return (core,)


def share_cores(cores: Sequence[int], replicas: int) -> list[tuple[int, ...]]:
    """Each replica's own cores, neighbours together, as evenly as possible. If there are too few, each gets
    one, in turn.
    """
    if replicas >= len(cores):
        return [(cores[i % len(cores)],) for i in range(replicas)]
    bounds = [i * len(cores) // replicas for i in range(replicas + 1)]
    return [tuple(cores[low:high]) for low, high in pairwise(bounds)]


def kv_cache_share_gib(available_gib: float, replicas: int, more_gib: float = 0.0) -> float:
    """KV cache for each of `replicas`: half of what is free after their fixed needs, 0.5 to 2 GiB.

    `more_gib`: what a replica's weights take beyond the default model's in bfloat16. Raises `SettingError` if
    not even the minimum fits.
    """
    needed_gib = OVERHEAD_GIB + more_gib
    free = available_gib / replicas - needed_gib
    if free < MIN_KV_GIB:
        raise SettingError(
            f"{available_gib:.1f} GiB of memory are free and "
            f"{counted(replicas, 'replica needs', 'replicas need')} "
            f"{replicas * (needed_gib + MIN_KV_GIB):.1f}; start fewer, or set the KV cache's size yourself"
        )
    return round(min(MAX_KV_GIB, max(MIN_KV_GIB, free / 2)), 2)
