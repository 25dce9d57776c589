"""Client of a schema registry: fetches each schema once, waits while the registry is down."""

from __future__ import annotations

import importlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from forebay.clock import Clock, SystemClock
from forebay.connectors.feeds.feed import PASSING, Backoff
from forebay.errors import ForebayError, MalformedRecord, SettingError, SetupError
from forebay.fields import HttpUrl, LocalPath, Model, SecretField
from forebay.settings import SecretRef, read_secret

UNKNOWN = frozenset((40401, 40402, 40403))
"""Subject, version or id; other 404s mean a wrong address."""
MAX_SCHEMA_CHARS = 1 << 20
MAX_REFERENCE_DEPTH = 20
MAX_REFERENCES = 100
MAX_ANSWER_BYTES = 4 << 20
"""Enough for a schema of `MAX_SCHEMA_CHARS` with many JSON escapes."""
REQUEST_TIMEOUT_S = 5.0
PATIENCE_S = 30.0
"""Checkpoints wait as long, and Flink allows a cancelled task three minutes."""


class RegistryAway(ForebayError): ...


class RegistryRefused(ForebayError): ...


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Confluent-compatible. `auth`: secret `USER:PASSWORD`. `ca`: PEM file."""

    url: str
    auth: SecretRef | None = None
    ca: str | None = None


def require_registry() -> None:
    try:
        for module in ("confluent_kafka.schema_registry", "fastavro", "google.protobuf"):
            importlib.import_module(module)
    except ImportError as error:
        raise SetupError(
            f"format: registry needs an extra that is not installed ({error.name}); "
            f"run: pip install 'forebay[registry]'"
        ) from None


def registry_auth(registry: SchemaRegistry) -> str | None:
    """Raises `SettingError`, without the secret, if it is missing or has no colon."""
    if registry.auth is None:
        return None
    secret = read_secret(registry.auth)
    if ":" not in secret:
        raise SettingError("the registry's secret must be USER:PASSWORD, and has no colon")
    return secret


class RegistryRetry:
    def __init__(
        self, url: str, *, clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._url = url
        self.clock = clock or SystemClock()
        self._sleep = sleep
        self._backoff = Backoff(0.1, 5.0)
        self._dice = random.Random()

    def ask(self, call: Callable[[], Any]) -> Any:
        """Blocks. Raises `MalformedRecord` if the schema is unknown, `RegistryRefused`, or `RegistryAway`."""
        begin_s = self.clock.monotonic_s()
        failures = 0
        while True:
            try:
                return _within_patience(call)
            except (MalformedRecord, RegistryRefused):
                raise
            except Exception as error:
                # Network errors have many classes, some of them from the client's own HTTP client.
                words = self._judged(error)
            failures += 1
            if self.clock.monotonic_s() - begin_s >= PATIENCE_S:
                raise RegistryAway(f"the schema registry at {self._url} is not available: {words}")
            self._sleep(self._backoff.delay_s(failures, self._dice))

    def _judged(self, error: Exception) -> str:
        status = getattr(error, "http_status_code", None)
        if status is None:
            return str(error) if isinstance(error, ForebayError) else type(error).__name__
        if getattr(error, "error_code", None) in UNKNOWN:
            raise MalformedRecord(
                "the schema registry lacks this schema or one of its references: "
                f"{str(getattr(error, 'error_message', ''))[:200]}"
            ) from None
        if 400 <= status < 500 and status not in PASSING:
            raise RegistryRefused(
                f"the schema registry at {self._url} answered {status}; check the registry's url and auth"
            ) from None
        return f"it answered {status}"


def _within_patience(call: Callable[[], Any]) -> Any:
    """The client limits each read only: a byte every few seconds would hold the task for days."""
    answered: Future[Any] = Future()

    def run() -> None:
        try:
            answered.set_result(call())
        except BaseException as error:
            answered.set_exception(error)

    threading.Thread(target=run, name="registry", daemon=True).start()
    try:
        return answered.result(PATIENCE_S)
    except FutureTimeout:
        raise RegistryAway(f"no whole answer within {PATIENCE_S:g} s") from None


def registry_client(registry: SchemaRegistry, patience: RegistryRetry) -> Any:
    require_registry()
    from confluent_kafka.schema_registry import SchemaRegistryClient

    class Client(SchemaRegistryClient):
        known: ClassVar[dict[tuple[object, ...], Any]] = {}

        def get_schema(self, schema_id: int, *_: Any, fmt: str | None = None, **__: Any) -> Any:
            fetch = super().get_schema
            return self._kept(("id", schema_id, fmt), lambda: fetch(schema_id, fmt=fmt))

        def get_schema_by_guid(self, guid: str, fmt: str | None = None) -> Any:
            fetch = super().get_schema_by_guid
            return self._kept(("guid", guid, fmt), lambda: fetch(guid, fmt))

        def get_version(
            self, subject_name: str, version: Any = "latest", deleted: bool = True, fmt: str | None = None
        ) -> Any:
            fetch = super().get_version
            name = (subject_name, version, fmt)
            return self._kept(name, lambda: fetch(subject_name, version, deleted, fmt))

        def _kept(self, name: tuple[object, ...], fetch: Callable[[], Any]) -> Any:
            if name not in self.known:
                clear: Callable[[], None] = self.clear_caches
                # confluent-kafka's own cache is keyed by a schema's id and ignores the format.
                clear()
                found = patience.ask(fetch)
                check_schema(getattr(found, "schema", found))
                self.known[name] = found
            return self.known[name]

    config: dict[str, Any] = {"url": registry.url, "timeout": REQUEST_TIMEOUT_S, "max.retries": 0}
    auth = registry_auth(registry)
    if auth is not None:
        config["basic.auth.user.info"] = auth
    if registry.ca is not None:
        config["ssl.ca.location"] = registry.ca
    client = Client(config)
    _limit(client._rest_client.session, registry.url, patience.clock)
    return client


def _limit(session: Any, url: str, clock: Clock) -> None:
    """Abort responses that are too long or slow. Disables compression, so that sizes are those in memory."""
    httpx = importlib.import_module(type(session).__module__.partition(".")[0])

    class Bounded(httpx.SyncByteStream):  # type: ignore[name-defined]
        def __init__(self, inner: Any, status: int) -> None:
            self._inner, self._status = inner, status

        def __iter__(self) -> Iterator[bytes]:
            size, begin_s = 0, clock.monotonic_s()
            for chunk in self._inner:
                size += len(chunk)
                if size > MAX_ANSWER_BYTES:
                    raise _too_long(self._status)
                if clock.monotonic_s() - begin_s > PATIENCE_S:
                    raise RegistryAway(f"its answer took longer than {PATIENCE_S:.0f} s")
                yield chunk

        def close(self) -> None:
            self._inner.close()

    def bound(response: Any) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise RegistryRefused(f"the schema registry at {url} compressed its answer although asked not to")
        response.stream = Bounded(response.stream, response.status_code)

    session.headers["Accept-Encoding"] = "identity"
    session.event_hooks = {"request": [], "response": [bound]}


def _too_long(status: int) -> ForebayError:
    words = f"the schema registry's answer is longer than {MAX_ANSWER_BYTES} bytes"
    return MalformedRecord(words) if status == 200 else RegistryAway(words)


def check_schema(schema: Any) -> None:
    text = schema.schema_str or ""
    if len(text) > MAX_SCHEMA_CHARS:
        raise MalformedRecord(f"it has {len(text)} characters, the limit is {MAX_SCHEMA_CHARS}")


def referenced_schemas(client: Any, schema: Any, fmt: str | None = None) -> dict[str, Any]:
    """All direct and indirect references by name, each after its own. Blocks.

    Raises as the client, and `MalformedRecord` if references are circular or too many.
    """
    found: dict[str, Any] = {}

    def visit(each: Any, depth: int) -> None:
        if depth > MAX_REFERENCE_DEPTH or len(found) > MAX_REFERENCES:
            raise MalformedRecord(
                f"its references are circular, or lead more than {MAX_REFERENCE_DEPTH} schemas deep or to "
                f"more than {MAX_REFERENCES} schemas"
            )
        for reference in each.references or ():
            if reference.name not in found:
                inner = client.get_version(reference.subject, reference.version, True, fmt).schema
                visit(inner, depth + 1)
                found[reference.name] = inner

    visit(schema, 0)
    return found


class RegistrySpec(Model):
    """The schema registry of values; it must support Confluent's protocol."""

    url: HttpUrl = Field(description="Address of the registry.")
    auth: SecretField | None = Field(
        None, description="Where `USER:PASSWORD` is: `{env: NAME}` or `{file: PATH}`; null: none is needed."
    )
    ca: LocalPath | None = Field(
        None,
        description="PEM file with the authorities that its certificate is checked against; null: the usual.",
    )

    def registry(self) -> SchemaRegistry:
        return SchemaRegistry(self.url, None if self.auth is None else self.auth.ref(), self.ca)

    def check(self, key: str) -> None:
        """Raise `SetupError` without the extra, `SettingError` if the secret is missing."""
        require_registry()
        try:
            registry_auth(self.registry())
        except SettingError as error:
            raise SettingError(f"{key}.registry.auth: {error}") from None
