"""The local engine in two calls: ensure that it is installed, then run replicas."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from forebay.engine.launch.architectures import (
    RANDOM_WEIGHTS,
    architecture_directory,
    has_random_weights,
    write_architecture,
)
from forebay.engine.launch.dtype import TYPES, NumberType, check_processor, measured_type, read_processor
from forebay.engine.launch.environment import (
    DEFAULT_MODEL,
    engine_python,
    ensure_default_model,
    ensure_environment,
    is_quantized,
    model_context_tokens,
    more_weights_gib,
)
from forebay.engine.launch.progress import Progress, Silent
from forebay.engine.launch.registry import ReplicaRegistry
from forebay.engine.launch.replicas import PORT_BASE, START_TIMEOUT_S, Replicas
from forebay.engine.launch.spec import (
    API_KEY,
    CONTEXT_TOKENS,
    EngineLaunch,
    ReplicaSpec,
    available_memory_gib,
    core_quota,
    kv_cache_share_gib,
    physical_cores,
    share_cores,
    thread_count,
    usable_cores,
    vllm_launch,
)
from forebay.errors import SettingError
from forebay.ports import check_port
from forebay.processes import pid_space
from forebay.settings import Settings, load_settings

MAX_REPLICAS = 64
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class LocalEngine:
    python: Path
    model: Path


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How local replicas are run; None: chosen by the machine's free resources.

    `model` is `default`, a directory, a hub's OWNER/NAME, or `random:NAME`; `cores` are divided among the
    replicas; `extra` are further arguments for vLLM, put last.
    """

    model: str = "default"
    served_name: str | None = None
    dtype: str | None = None
    cores: tuple[int, ...] | None = None
    port_base: int = PORT_BASE
    kv_cache_gib: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 128
    eager: bool = True
    extra: tuple[str, ...] = ()
    timeout_s: float = START_TIMEOUT_S


def ensure_engine(settings: Settings, progress: Progress | None = None) -> LocalEngine:
    """Install the engine's environment and the default model if they are missing; blocks for minutes then.

    Safe in concurrent processes, and after an interruption. Raises `SetupError`.
    """
    shown = progress or Silent()
    ensure_environment(settings, shown)
    return LocalEngine(engine_python(settings), ensure_default_model(settings, shown))


def machine_registry(settings: Settings) -> ReplicaRegistry:
    """The registry of this machine's replicas. A container sees only its own processes, so each has its own
    file.
    """
    return ReplicaRegistry(settings.run / f"replicas-{pid_space()}.json")


@contextmanager
def local_replicas(
    count: int = 1,
    options: EngineOptions | None = None,
    *,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Iterator[Replicas]:
    """Run `count` vLLM replicas for the duration of the block, as of `local_places`; enters it when all are
    healthy. Raises `SettingError`, `SetupError` or `LaunchError`.
    """
    chosen = options or EngineOptions()
    with local_places(count, chosen, settings=settings, progress=progress) as places:
        places.replicas.start(
            places.shares, port_base=chosen.port_base, timeout_s=chosen.timeout_s, progress=progress
        )
        yield places.replicas


@dataclass(frozen=True, slots=True)
class LocalPlaces:
    replicas: Replicas
    shares: tuple[tuple[int, ...], ...]


@contextmanager
def local_places(
    count: int,
    options: EngineOptions | None = None,
    *,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Iterator[LocalPlaces]:
    """Places for up to `count` vLLM replicas on this machine for the duration of the block.

    Installs a missing engine first. Replicas end with the block, also if this process is killed. Raises
    `SettingError`, also if the machine is too small, and `SetupError`.
    """
    chosen, home = options or EngineOptions(), settings or load_settings()
    if not 1 <= count <= MAX_REPLICAS:
        raise SettingError(f"{count} replicas were requested; expected 1 to {MAX_REPLICAS}")
    directory, name = resolve_model(chosen.model, home)
    _check(chosen)
    processor = read_processor()
    check_processor(processor)
    shares = share_cores(chosen.cores or usable_cores(), count)
    engine = ensure_engine(home, progress)
    made_up = has_random_weights(chosen.model)
    if made_up:
        write_architecture(chosen.model, home)
    number_type = _number_type(home, chosen, directory, shares[0], progress or Silent())
    more_gib = more_weights_gib(Path(directory), number_type.name)
    spec = ReplicaSpec(
        model=directory,
        served_name=chosen.served_name or name,
        dtype=number_type.name,
        max_model_len=chosen.max_model_len or default_context_tokens(Path(directory)),
        max_num_seqs=chosen.max_num_seqs,
        kv_cache_gib=chosen.kv_cache_gib or kv_cache_share_gib(available_memory_gib(), count, more_gib),
        eager=chosen.eager,
        extra=(*(RANDOM_WEIGHTS if made_up else ()), *chosen.extra),
    )

    def launch(port: int, cores: tuple[int, ...]) -> EngineLaunch:
        made = vllm_launch(engine.python, spec, port=port, cores=cores, threads=threads_on(cores))
        return replace(made, withheld=home.secret_variables - {API_KEY})

    with Replicas(machine_registry(home), launch, model=spec.served_name, dtype=number_type) as replicas:
        yield LocalPlaces(replicas, tuple(shares))


def best_type(settings: Settings, progress: Progress | None = None) -> NumberType:
    cores = usable_cores()
    return measured_type(settings, read_processor(), cores, threads_on(cores), progress or Silent())


def threads_on(cores: Sequence[int]) -> int:
    return thread_count(physical_cores(cores), core_quota())


def _number_type(
    settings: Settings, options: EngineOptions, model: str, cores: Sequence[int], progress: Progress
) -> NumberType:
    asked = given_dtype(options.extra) or options.dtype
    if asked is not None:
        return NumberType(asked, "asked for")
    if is_quantized(Path(model)):
        return NumberType(TYPES[0], "the model's weights are quantized")
    return measured_type(settings, read_processor(), cores, threads_on(cores), progress)


def given_dtype(extra: Sequence[str]) -> str | None:
    """The number type among arguments for vLLM; the last one, as in vLLM."""
    given = None
    for at, argument in enumerate(extra):
        if argument == "--dtype":
            given = next(iter(extra[at + 1 :]), None)
        elif argument.startswith("--dtype="):
            given = argument.removeprefix("--dtype=")
    return given or None


def resolve_model(model: str, settings: Settings) -> tuple[str, str]:
    """What vLLM loads, and the name it is served under. Raises `SettingError` for an impossible model."""
    if model == "default":
        return str(settings.models / DEFAULT_MODEL), DEFAULT_MODEL
    if has_random_weights(model):
        directory = architecture_directory(model, settings)
        return str(directory), directory.name
    # `os.path`, as it returns False for a name that no file can have; pathlib raises.
    if os.path.isdir(os.path.expanduser(model)):
        path = Path(model).expanduser()
        if not (path / "config.json").is_file():
            raise SettingError(
                f"{path} has no config.json; --model takes a directory as transformers saves it"
            )
        return str(path.resolve()), path.resolve().name
    if HUB_NAME.fullmatch(model):
        return model, model
    raise SettingError(
        f"model {model[:200]!r} is not a directory; expected default, a directory, a hub's OWNER/NAME, "
        "or random:NAME"
    )


def default_context_tokens(model: Path) -> int:
    return min(CONTEXT_TOKENS, model_context_tokens(model) or CONTEXT_TOKENS)


def _check(options: EngineOptions) -> None:
    positive = {
        "a KV cache of {} GiB": options.kv_cache_gib,
        "a model length of {} tokens": options.max_model_len,
        "a batch of {} sequences": options.max_num_seqs,
    }
    for what, value in positive.items():
        if value is not None and not value > 0:
            raise SettingError(f"{what.format(value)} was requested; expected more than 0")
    if missing := sorted(set(options.cores or ()) - set(usable_cores())):
        raise SettingError(f"cores {missing} cannot be used here; usable are {list(usable_cores())}")
    check_port(options.port_base)
