"""The number type of a local engine: the faster one on this processor, measured once and stored.

A processor without bfloat16 instructions emulates them: float32 is then several times faster, at twice the
memory.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from forebay.engine.launch.environment import engine_python, recipe
from forebay.engine.launch.progress import Progress
from forebay.engine.launch.spec import compute_environment
from forebay.errors import LaunchError
from forebay.files import locked, read_stamp, write_stamp
from forebay.settings import Settings

SHORT, LONG = "bfloat16", "float32"
TYPES = (SHORT, LONG)
LONG_FROM = 1.2
"""float32 must be this many times faster, as it needs twice the memory."""
MIN_GFLOPS = 2.0
"""Below this, the default model needs four seconds or more to read a post of thirty tokens."""
PROBE = Path(__file__).with_name("probe_dtype.py")
PROBE_TIMEOUT_S = 120.0
KEPT = 32
CPUINFO = Path("/proc/cpuinfo")
MAX_CPUINFO_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Processor:
    architecture: str
    name: str = ""
    features: frozenset[str] = frozenset()

    @property
    def has_bfloat16(self) -> bool:
        return bool(self.features & {"avx512_bf16", "amx_bf16", "bf16"})


def read_processor(cpuinfo: Path = CPUINFO) -> Processor:
    values: dict[str, str] = {}
    try:
        with cpuinfo.open("rb") as file:
            lines = file.read(MAX_CPUINFO_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    features = values.get("flags", values.get("Features", ""))
    return Processor(platform.machine(), values.get("model name", ""), frozenset(features.split()))


@dataclass(frozen=True, slots=True)
class NumberType:
    name: str
    reason: str
    gflops: float | None = None


def choose(speeds: Mapping[str, float]) -> NumberType | None:
    known = {name: speed for name, speed in speeds.items() if name in TYPES and speed > 0}
    if not known:
        return None
    fastest = max(known, key=lambda name: known[name] / (LONG_FROM if name == LONG else 1.0))
    listed = ", ".join(f"{name} {known[name]:.0f}" for name in TYPES if name in known)
    return NumberType(fastest, f"measured here, GFLOP/s: {listed}", known[fastest])


def choose_by_features(processor: Processor) -> NumberType:
    if processor.has_bfloat16:
        return NumberType(SHORT, "the processor has instructions for bfloat16")
    if processor.features:
        return NumberType(LONG, "the processor has no instructions for bfloat16")
    return NumberType(LONG, "the processor's features are not known")


def check_processor(processor: Processor) -> None:
    """Raise `LaunchError` for a processor that is known to lack what vLLM needs."""
    known = processor.architecture in ("x86_64", "AMD64") and bool(processor.features)
    if known and "avx2" not in processor.features:
        raise LaunchError(
            f"the processor ({processor.name or 'no name'}) has no AVX2, which vLLM needs; "
            "use an engine on another machine: --engine URL"
        )


def known_type(settings: Settings, processor: Processor, threads: int) -> NumberType:
    speeds = read_stamp(_file(settings)).get(_key(processor, threads))
    chosen = choose(_numbers(speeds)) if isinstance(speeds, dict) else None
    return chosen or choose_by_features(processor)


def measured_type(
    settings: Settings, processor: Processor, cores: Sequence[int], threads: int, progress: Progress
) -> NumberType:
    """The type for an engine with `threads` threads on `cores`; blocks for some seconds the first time.

    Needs the engine's environment. If the measurement fails, the processor's features decide.
    """
    file, key = _file(settings), _key(processor, threads)
    with locked(file.with_suffix(".lock")):
        kept = read_stamp(file)
        if key not in kept:
            with progress.step("Measuring which number type this processor is fast at (some seconds, once)"):
                speeds = probe(settings, cores, threads)
            if not speeds:
                return choose_by_features(processor)
            latest = list(kept.items())[-KEPT + 1 :]
            write_stamp(file, {**dict(latest), key: speeds})
    return known_type(settings, processor, threads)


def probe(settings: Settings, cores: Sequence[int], threads: int) -> dict[str, float]:
    """GFLOP/s by type, measured with the engine's Python; empty on failure. Blocks for seconds."""
    named = ",".join(map(str, cores)) or "any"
    command = [str(engine_python(settings)), "-I", str(PROBE), str(threads), named, *TYPES]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
            env=settings.child_environment(compute_environment(engine_python(settings), threads)),
        )
        found = orjson.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, orjson.JSONDecodeError):
        return {}
    return _numbers(found) if isinstance(found, dict) else {}


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def _file(settings: Settings) -> Path:
    return settings.home / "number-types.json"


def _key(processor: Processor, threads: int) -> str:
    conditions = (
        f"{recipe()}\n{processor.architecture}\n{processor.name}\n{' '.join(sorted(processor.features))}"
    )
    return f"{hashlib.sha256(conditions.encode()).hexdigest()[:16]} {threads}"
