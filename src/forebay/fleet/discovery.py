"""Lists of replicas, and the check of what they serve before a job starts."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson
from yarl import URL

from forebay.clock import Clock, SystemClock
from forebay.engine.client import replica_url
from forebay.engine.replica import ServedModel, list_models, probe_error
from forebay.engine.retry import RetryPolicy, jitter_unit
from forebay.errors import EngineError, PipelineFailed, SettingError, Unreachable
from forebay.files import read_bytes, read_text, write_atomic
from forebay.settings import SecretRef, read_secret

MAX_REPLICAS = 1000


class ReplicaList(Protocol):
    """The addresses of a fleet's replicas. Picklable; holds no connection."""

    async def urls(self) -> tuple[str, ...]:
        """Return the current URLs, each once. Raises `SettingError` if they cannot be found out."""
        ...

    def updates(self) -> AsyncGenerator[tuple[str, ...] | SettingError, None]:
        """Yield the URLs now and after each change, or a `SettingError`: the last URLs stay valid. Ends if
        they never change.
        """
        ...


async def polled(
    urls: Callable[[], Awaitable[tuple[str, ...]]], every_s: float
) -> AsyncGenerator[tuple[str, ...] | SettingError, None]:
    while True:
        try:
            yield await urls()
        except SettingError as error:
            yield error
        if every_s == math.inf:
            return
        await asyncio.sleep(every_s)


def checked(urls: Iterable[object], *, where: str) -> tuple[str, ...]:
    """Return `urls` without repetition. Raises `SettingError`, naming `where`, for none, too many or a bad
    one.
    """
    found: dict[str, None] = {}
    for url in urls:
        if not isinstance(url, str):
            raise SettingError(f"{where}: expected URLs, found {type(url).__name__}")
        try:
            found[replica_url(url)] = None
        except SettingError as error:
            raise SettingError(f"{where}: {error}") from None
        if len(found) > MAX_REPLICAS:
            raise SettingError(f"{where}: holds more than {MAX_REPLICAS} replicas")
    if not found:
        raise SettingError(f"{where}: holds no replica; expected at least one URL")
    return tuple(found)


@dataclass(frozen=True)
class FixedReplicas:
    given: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", checked(self.given, where="the list of replicas"))

    async def urls(self) -> tuple[str, ...]:
        return self.given

    def updates(self) -> AsyncGenerator[tuple[str, ...] | SettingError, None]:
        return polled(self.urls, math.inf)


@dataclass(frozen=True)
class DnsReplicas:
    """Every address of the host in `url` is a replica. `http` only: an address has no certificate."""

    url: str
    every_s: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", replica_url(self.url))
        if URL(self.url).scheme != "http":
            raise SettingError(
                f"dns: expected http://NAME:PORT, found {self.url}; list https replicas by name"
            )

    async def urls(self) -> tuple[str, ...]:
        parsed = URL(self.url)
        host, port = parsed.host or "", parsed.port or 80
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise SettingError(f"the name {host} cannot be resolved: {reason}") from None
        addresses = sorted({str(entry[4][0]) for entry in found})
        return checked((str(parsed.with_host(address)) for address in addresses), where=f"the name {host}")

    def updates(self) -> AsyncGenerator[tuple[str, ...] | SettingError, None]:
        return polled(self.urls, self.every_s)


MAX_BYTES = 256 << 10


@dataclass(frozen=True)
class FileReplicas:
    """A file of URLs: one per line (`#` begins a comment), or a list in YAML or JSON.

    Replace it by renaming: half a list is a valid list, too.
    """

    path: str
    every_s: float = 2.0

    async def urls(self) -> tuple[str, ...]:
        return await asyncio.get_running_loop().run_in_executor(None, read_replicas, Path(self.path))

    def updates(self) -> AsyncGenerator[tuple[str, ...] | SettingError, None]:
        return polled(self.urls, self.every_s)


def read_replicas(path: Path) -> tuple[str, ...]:
    """Blocks. Raises `SettingError` if the file cannot be read or has none."""
    where = f"replica file {path}"
    return checked(_entries(read_text(path, MAX_BYTES, where), where), where=where)


def _entries(text: str, where: str) -> Iterable[object]:
    if text.lstrip().startswith("["):
        try:
            value: Any = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise SettingError(f"{where} is not a JSON list of URLs: {error}") from None
        return list(value)
    # A YAML list also has one per line, with a dash and perhaps in quotes.
    lines = (line.split("#", 1)[0].strip().removeprefix("- ").strip(" \t'\"") for line in text.splitlines())
    return [line for line in lines if line]


class ScaledReplicaSet(tuple[str, ...]):
    """URLs of replicas that may get requests, perhaps none. `version` grows with each change; `wanted` is how
    many there should be.
    """

    version: int
    wanted: int

    def __new__(cls, urls: Iterable[str], version: int = 0, wanted: int = 0) -> ScaledReplicaSet:
        made = super().__new__(cls, urls)
        made.version = version
        made.wanted = wanted
        return made


@dataclass(frozen=True)
class ScaledReplicas:
    """The `ReplicaList` of a scaled fleet, read from the file of `write_listing`. May be empty."""

    path: str
    every_s: float = 0.5

    async def urls(self) -> tuple[str, ...]:
        return await asyncio.get_running_loop().run_in_executor(None, read_listing, Path(self.path))

    def updates(self) -> AsyncGenerator[tuple[str, ...] | SettingError, None]:
        return polled(self.urls, self.every_s)


def write_listing(path: Path, listing: ScaledReplicaSet) -> None:
    document = {"version": listing.version, "wanted": listing.wanted, "replicas": list(listing)}
    write_atomic(path, orjson.dumps(document))


def read_listing(path: Path) -> ScaledReplicaSet:
    """Blocks. Raises `SettingError` if the file cannot be read."""
    where = f"the list of replicas {path}"
    try:
        found: Any = orjson.loads(read_bytes(path, MAX_BYTES, where))
        urls, version, wanted = found["replicas"], found["version"], found["wanted"]
        if not isinstance(urls, list) or type(version) is not int or type(wanted) is not int:
            raise TypeError("a value of another type")
        if len(urls) > MAX_REPLICAS:
            raise TypeError(f"more than {MAX_REPLICAS} replicas")
        return ScaledReplicaSet(dict.fromkeys(replica_url(url) for url in urls), version, wanted)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise SettingError(
            f"{where} is invalid: {error}; its owner replaces it with the next change"
        ) from None


MAX_REASONS = MAX_NAMES = 4


class Note(Protocol):
    """Called while waiting for the engine, with the seconds so far."""

    def __call__(self, text: str, waited_s: float) -> None: ...


def discover_model(
    replicas: ReplicaList,
    wanted: str | None,
    *,
    api_key: SecretRef | None,
    retry: RetryPolicy,
    deadline_s: float,
    keys: tuple[str, str],
    note: Note = lambda words, waited_s: None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> ServedModel:
    """Find the model to request and check that the replicas serve it; blocks.

    One replica that answers is enough. The context is the shortest of all replicas, None if none reports one.
    Without replicas, `wanted` is accepted. Passing failures are retried by `retry` until `deadline_s`; then
    `PipelineFailed` is raised. `SettingError` is raised for other failures, an unreadable list, and if no
    replica that answers serves the model. `keys` are the settings to name in messages.
    """
    url_key, model_key = keys
    key = None if api_key is None else read_secret(api_key)
    served = _served(
        replicas,
        key,
        policy=retry,
        none_ok=wanted is not None,
        within_s=deadline_s,
        url_key=url_key,
        note=note,
        clock=clock or SystemClock(),
        sleep=sleep,
    )
    names = {model.name for models in served.values() for model in models}
    if wanted is not None and (wanted in names or not served):
        return _shortest(wanted, served)
    if wanted is None and len(names) == 1:
        return _shortest(names.pop(), served)
    if wanted is None:
        raise SettingError(f"{model_key}: expected a name: {_describe(served)}")
    raise SettingError(f"{model_key}: {wanted!r} is not served: {_describe(served)}")


def check_served(
    replicas: ReplicaList, wanted: str, *, api_key: SecretRef | None, within_s: float, key: str
) -> ServedModel:
    """Return the model `wanted` as the replicas serve it; blocks for at most `within_s`.

    The context is unknown if none answers in time or the API key is not available here. Raises
    `SettingError`, naming the setting `key`, if replicas answer and none serves the model.
    """
    try:
        secret = None if api_key is None else read_secret(api_key)
        urls, answers = asyncio.run(asyncio.wait_for(_ask(replicas, secret), within_s))
    except (SettingError, TimeoutError, asyncio.TimeoutError):
        return ServedModel(wanted)
    served = _models(urls, answers)
    if served and not any(model.name == wanted for models in served.values() for model in models):
        raise SettingError(f"{key}: {wanted!r} is not served: {_describe(served)}")
    return _shortest(wanted, served)


def why_unserved(replicas: ReplicaList, wanted: str, *, api_key: SecretRef | None, within_s: float) -> str:
    """Why no replica answers for the model `wanted`; empty if one does. Blocks for about twice `within_s`, or
    longer if a name is slow to resolve.
    """
    try:
        secret = None if api_key is None else read_secret(api_key)
        urls, answers = asyncio.run(asyncio.wait_for(_ask(replicas, secret), within_s))
    except SettingError as error:
        return str(error)
    except (TimeoutError, asyncio.TimeoutError):
        return f"no replica listed its models within {within_s:g} s"
    served = _models(urls, answers)
    listing = [url for url, models in served.items() if any(model.name == wanted for model in models)]
    if listing:
        errors = asyncio.run(_probe(listing[:MAX_REASONS], wanted, secret, within_s))
        return "; ".join(map(str, errors)) if all(errors) else ""
    failures = [str(answer) for answer in answers if isinstance(answer, EngineError)][:MAX_REASONS]
    return "; ".join(([f"{_describe(served)}, not {wanted}"] if served else []) + failures)


Served = Mapping[str, tuple[ServedModel, ...]]


def _shortest(name: str, served: Served) -> ServedModel:
    found = [model for models in served.values() for model in models if model.name == name]
    lengths = [model.max_model_len for model in found if model.max_model_len is not None]
    return ServedModel(name, min(lengths, default=None))


def _models(
    urls: Iterable[str], answers: Iterable[tuple[ServedModel, ...] | EngineError]
) -> dict[str, tuple[ServedModel, ...]]:
    return {
        url: answer for url, answer in zip(urls, answers, strict=True) if not isinstance(answer, EngineError)
    }


def _describe(served: Served) -> str:
    return "; ".join(f"the engine at {url} serves {_some(models)}" for url, models in served.items())


def _some(models: Sequence[ServedModel]) -> str:
    more = f" and {len(models) - MAX_NAMES} more" if len(models) > MAX_NAMES else ""
    return (", ".join(model.name for model in models[:MAX_NAMES]) or "nothing") + more


def _served(
    replicas: ReplicaList,
    api_key: str | None,
    *,
    policy: RetryPolicy,
    none_ok: bool,
    within_s: float,
    url_key: str,
    note: Note,
    clock: Clock,
    sleep: Callable[[float], None],
) -> dict[str, tuple[ServedModel, ...]]:
    begin_s = clock.monotonic_s()
    attempt, alike = 0, Counter[float]()
    while True:
        attempt += 1
        urls, answers = asyncio.run(_ask(replicas, api_key))
        served = _models(urls, answers)
        if served or (none_ok and not urls):
            return served
        errors = [answer for answer in answers if isinstance(answer, EngineError)] or [
            Unreachable("there is no replica at present", sent=False)
        ]
        error = next((error for error in errors if error.retryable), errors[0])
        if not error.retryable:
            raise SettingError(f"{url_key}: the engine did not list its models: {error}")
        waited_s = clock.monotonic_s() - begin_s
        alike[policy.limit(error)] += 1
        delay_s = policy.next_delay_s(
            error,
            attempt=attempt,
            alike=alike[policy.limit(error)],
            left_s=within_s - waited_s,
            jitter_unit=jitter_unit(urls[0] if urls else url_key, attempt),
        )
        reasons = "; ".join(map(str, errors[:MAX_REASONS]))
        if delay_s is None:
            raise PipelineFailed(
                f"the engine did not list its models: {reasons} ({attempt} tries in "
                f"{waited_s:.0f} s); nothing was started"
            )
        tries = policy.limit(error)
        most = f"{within_s:g} s" if tries == math.inf else f"{tries:g} tries"
        note(f"waiting for the engine, at most {most}: {reasons}", waited_s)
        sleep(delay_s)


async def _probe(
    urls: Iterable[str], model: str, api_key: str | None, within_s: float
) -> list[EngineError | None]:
    probes = (probe_error(url, model, api_key=api_key, within_s=within_s) for url in urls)
    return await asyncio.gather(*probes)


async def _ask(
    replicas: ReplicaList, api_key: str | None
) -> tuple[tuple[str, ...], list[tuple[ServedModel, ...] | EngineError]]:
    async def ask(url: str) -> tuple[ServedModel, ...] | EngineError:
        try:
            return await list_models(url, api_key=api_key)
        except EngineError as error:
            return error

    urls = await replicas.urls()
    return urls, await asyncio.gather(*map(ask, urls))
