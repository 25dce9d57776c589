"""Compares number types, threads and waiting modes of a local engine, idle and with one core busy."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from forebay.connectors.generator.posts import TOPICS, post, topic_of
from forebay.engine.client import HttpEngine
from forebay.engine.launch.dtype import LONG, SHORT
from forebay.engine.launch.local import best_type, ensure_engine, machine_registry, resolve_model, threads_on
from forebay.engine.launch.progress import Progress
from forebay.engine.launch.replicas import PORT_BASE, Replicas
from forebay.engine.launch.spec import EngineLaunch, ReplicaSpec, usable_cores, vllm_launch
from forebay.errors import EngineError, SettingError
from forebay.records import Request, Sampling
from forebay.settings import Settings

IN_FLIGHT = 32
ANSWER_TOKENS = 20
WARM_UP_S = 0.1
MAX_S = 60.0
"""Later answers do not count."""
KV_CACHE_GIB = 1.0
BUSY = (sys.executable, "-c", "while True: pass")


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """A difference from the local engine's defaults."""

    about: str
    dtype: str | None = None
    threads: int = 0
    nice: int = 0
    pinned: bool = False
    environment: Mapping[str, str | None] = field(default_factory=dict)


GNU: dict[str, str | None] = {"LD_PRELOAD": None, "KMP_BLOCKTIME": None, "OMP_WAIT_POLICY": None}
SETTINGS: dict[str, EngineSetting] = {
    "local": EngineSetting("the local engine as it is"),
    "bfloat16": EngineSetting("in bfloat16", SHORT),
    "float32": EngineSetting("in float32", LONG),
    "vllm": EngineSetting(
        "vLLM's own: two processes, threads bound to cores",
        pinned=True,
        environment={**GNU, "VLLM_ENABLE_V1_MULTIPROCESSING": None},
    ),
    "two-processes": EngineSetting(
        "scheduler and model in two processes", environment={"VLLM_ENABLE_V1_MULTIPROCESSING": None}
    ),
    "gnu": EngineSetting("GNU's OpenMP, threads spin", environment=GNU),
    "passive": EngineSetting(
        "GNU's OpenMP, threads sleep", environment={**GNU, "OMP_WAIT_POLICY": "passive"}
    ),
    "bound": EngineSetting("threads bound to cores", pinned=True),
    "spin-200": EngineSetting("threads spin for 200 ms", environment={"KMP_BLOCKTIME": "200"}),
    "spin-0": EngineSetting("threads do not spin", environment={"KMP_BLOCKTIME": "0"}),
    "core-free": EngineSetting("one thread fewer", threads=-1),
    "nice-10": EngineSetting("lower priority (nice 10)", nice=10),
}


@dataclass(frozen=True, slots=True)
class SettingFigures:
    """Generated tokens per second, for answers of 20 tokens to short prompts with 32 requests in flight.

    `busy`: while another process kept one core busy.
    """

    name: str
    about: str
    ready_s: float
    idle_tokens_per_s: float
    busy_tokens_per_s: float


def launch_of(setting: EngineSetting, base: EngineLaunch) -> EngineLaunch:
    environment: dict[str, str] = {**base.environment}
    for name, value in setting.environment.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    if setting.pinned:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, base.cores))
    nice = ("nice", "-n", str(setting.nice)) if setting.nice else ()
    return replace(base, command=nice + base.command, environment=environment)


def measure_settings(
    names: Sequence[str], settings: Settings, *, seconds: float, progress: Progress
) -> Iterator[SettingFigures]:
    if unknown := sorted(set(names) - SETTINGS.keys()):
        raise SettingError(f"--setting: expected some of {', '.join(SETTINGS)}; found {', '.join(unknown)}")
    for name in names:
        setting = SETTINGS[name]
        begin_s = time.monotonic()
        with _engine(setting, settings, progress) as (url, model):
            ready_s = time.monotonic() - begin_s
            written_per_second(url, model, WARM_UP_S)
            idle = written_per_second(url, model, seconds)
            with _a_core_busy():
                busy = written_per_second(url, model, seconds)
        yield SettingFigures(name, setting.about, round(ready_s, 1), round(idle, 1), round(busy, 1))


def written_per_second(url: str, model: str, seconds: float) -> float:
    """Tokens per second that the engine at `url` generates with `IN_FLIGHT` requests in flight;
    blocks."""
    return asyncio.run(_written_per_second(url, model, seconds))


async def _written_per_second(url: str, model: str, seconds: float) -> float:
    engine, written, begun = HttpEngine(url, stream=False), 0, time.monotonic()

    async def ask_on(lane: int) -> None:
        nonlocal written
        for index in itertools.count(lane, IN_FLIGHT):
            topic = topic_of(1, index, burst_topic="outage", share=1 / len(TOPICS))
            text = post(round(begun * 1000), index, topic)["text"]
            request = Request(
                id=f"settings-{index}",
                model=model,
                prompt=f"Post {index}: {text}\nWhat it is about:",
                sampling=Sampling(max_tokens=ANSWER_TOKENS, extra={"ignore_eos": True}),
            )
            completion = await engine.complete(request, timeout_s=2 * MAX_S)
            written += completion.usage.completion_tokens
            if time.monotonic() >= begun + seconds:
                return

    lanes = [asyncio.create_task(ask_on(lane)) for lane in range(IN_FLIGHT)]
    try:
        done, _ = await asyncio.wait(lanes, timeout=MAX_S, return_when=asyncio.FIRST_EXCEPTION)
        took_s = time.monotonic() - begun
        for lane in done:
            lane.result()
    finally:
        for lane in lanes:
            lane.cancel()
        for lane in lanes:
            with suppress(asyncio.CancelledError, EngineError):
                await lane
        await engine.close()
    return written / took_s


@contextmanager
def _engine(setting: EngineSetting, settings: Settings, progress: Progress) -> Iterator[tuple[str, str]]:
    python, cores = ensure_engine(settings, progress).python, usable_cores()
    model, name = resolve_model("default", settings)
    dtype = setting.dtype or best_type(settings, progress).name
    spec = ReplicaSpec(model, name, dtype=dtype, kv_cache_gib=KV_CACHE_GIB)
    threads = max(1, threads_on(cores) + setting.threads)

    def launch(port: int, cores: tuple[int, ...]) -> EngineLaunch:
        return launch_of(setting, vllm_launch(python, spec, port=port, cores=cores, threads=threads))

    with Replicas(machine_registry(settings), launch, model=name) as replicas:
        replicas.start([cores], port_base=PORT_BASE, progress=progress)
        yield replicas[0], name


@contextmanager
def _a_core_busy() -> Iterator[None]:
    process = subprocess.Popen(BUSY)
    try:
        yield
    finally:
        process.kill()
        process.wait()
