"""The engines of a grid: started here, one model after the other, or already running."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from benchmarks.grid.cells import Parallelism
from benchmarks.grid.streamed import TEMPERATURE
from forebay.bench.records import LoadRequest
from forebay.bench.targets.base import TRIAL, OnPiece, Target
from forebay.bench.targets.openai import OpenAiOptions, OpenAiTarget
from forebay.engine.launch.local import EngineOptions, local_replicas, resolve_model
from forebay.engine.launch.progress import Progress
from forebay.engine.launch.spec import usable_cores
from forebay.errors import SettingError
from forebay.settings import Settings

MAX_MODEL_LEN = 2048


class SpreadTarget:
    """A `Target` of several replicas: request i goes to replica i modulo their number."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = tuple(targets)

    @property
    def name(self) -> str:
        return ", ".join(target.name for target in self._targets)

    @asynccontextmanager
    async def open(
        self, connections: int = 1, trials: Sequence[LoadRequest] = (TRIAL,)
    ) -> AsyncIterator[None]:
        share = -(-connections // len(self._targets))
        async with AsyncExitStack() as opened:
            for target in self._targets:
                await opened.enter_async_context(target.open(share, trials))
            yield

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        await self._targets[request.index % len(self._targets)].answer(request, on_piece)


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """The replicas of one model; `model` None: the one that they serve."""

    urls: tuple[str, ...]
    model: str | None
    processes: Mapping[str, int] = field(default_factory=dict)

    def target(self) -> Target:
        options = OpenAiOptions(model=self.model, extra={"temperature": TEMPERATURE})
        targets = [OpenAiTarget(url, options) for url in self.urls]
        return targets[0] if len(targets) == 1 else SpreadTarget(targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngines:
    """Starts vLLM replicas on this machine, each with its own cores and a KV cache of the same size."""

    settings: Settings
    progress: Progress
    cores: tuple[int, ...] = ()
    dtype: str | None = None
    kv_cache_gib: float = 1.0
    max_model_len: int = MAX_MODEL_LEN

    def check(self, models: Sequence[str]) -> None:
        """Raise `SettingError` for models that cannot be started."""
        for model in models:
            resolve_model(model, self.settings)

    def sized(self, parallelisms: Sequence[Parallelism]) -> tuple[Parallelism, ...]:
        """The same, with the cores of each replica."""
        return tuple(parallelism.on(self.cores or usable_cores()) for parallelism in parallelisms)

    @contextmanager
    def start(self, model: str, parallelism: Parallelism) -> Iterator[RunningEngine]:
        cores = self.cores or usable_cores()
        sized = parallelism.on(cores)
        options = EngineOptions(
            model=model,
            dtype=self.dtype,
            cores=cores[: sized.replicas * (sized.cores_each or 1)],
            kv_cache_gib=self.kv_cache_gib,
            max_model_len=self.max_model_len,
        )
        with local_replicas(
            sized.replicas, options, settings=self.settings, progress=self.progress
        ) as replicas:
            processes = {
                "engine" if sized.replicas == 1 else f"engine{number}": replica.pid
                for number, replica in enumerate(replicas.replicas)
            }
            yield RunningEngine(replicas.urls, replicas.model, processes)


@dataclass(frozen=True, slots=True)
class GivenEngines:
    """Running servers of one model: the first of them for one replica, and so on."""

    urls: tuple[str, ...]

    def check(self, models: Sequence[str]) -> None:
        """Raise `SettingError` for more than one model."""
        if len(models) > 1:
            raise SettingError("--url: its servers have one model; expected at most one --model")

    def sized(self, parallelisms: Sequence[Parallelism]) -> tuple[Parallelism, ...]:
        for parallelism in parallelisms:
            if parallelism.replicas > len(self.urls) or parallelism.cores_each is not None:
                raise SettingError(
                    f"--replicas {parallelism.name}: expected 1 to {len(self.urls)}, a --url for each"
                )
        return tuple(parallelisms)

    @contextmanager
    def start(self, model: str, parallelism: Parallelism) -> Iterator[RunningEngine]:
        urls = self.urls[: parallelism.replicas]
        yield RunningEngine(urls, None if model == "default" else model)
