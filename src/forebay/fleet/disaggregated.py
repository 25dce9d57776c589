"""An `Engine` over two fleets: one prefills prompts, the other takes over the KV cache and decodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from forebay.engine import Deadline, EngineFactory
from forebay.engine.call_trace import CALL_TRACE
from forebay.engine.protocol import KV_TRANSFER
from forebay.engine.replica import NO_LIST, HttpReplica
from forebay.errors import EngineError, SettingError, Unreachable
from forebay.fleet.client import FleetClient
from forebay.fleet.config import FleetConfig, FleetEngineFactory
from forebay.fleet.discovery import ReplicaList
from forebay.fleet.engine import FleetEngine
from forebay.records import JSON, Completion, KvHandover, Message, Request
from forebay.settings import SecretRef, read_secret

PREFILL_PARAMS: dict[str, JSON] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""They make vLLM's NIXL connector keep a KV cache and return its location (vLLM 0.32,
docs/features/nixl_connector_usage.md).
"""
LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "min_tokens")
STREAM_FIELDS = ("stream", "stream_options")
"""vLLM returns the location only with answers in one piece, and then rejects the options of a stream."""
LOOK_S = 1.0
MISSING = 10

log = logging.getLogger("forebay")
Answer = TypeVar("Answer")


def prefill_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    left_out = (*LENGTH_FIELDS, *STREAM_FIELDS)
    kept = {key: value for key, value in fields.items() if key not in left_out}
    return {**kept, "max_tokens": 1, KV_TRANSFER: PREFILL_PARAMS}


def none_prefills(prefill: FleetClient) -> bool:
    return not prefill.usable and (prefill.probed or bool(prefill.fault))


async def while_some_prefill(
    call: Coroutine[Any, Any, Answer], none_prefills: Callable[[], bool]
) -> Answer | None:
    """Return the result of a prefill; None, with `call` cancelled, if no replica can prefill any more."""
    task = asyncio.ensure_future(call)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=LOOK_S)
            if not task.done() and none_prefills():
                return None
        return task.result()
    finally:
        while not task.done():
            # Before Python 3.11 a task may lose a cancellation.
            task.cancel()
            await asyncio.wait((task,), timeout=LOOK_S)
        await asyncio.gather(task, return_exceptions=True)


class MissingKvCaches:
    def __init__(self) -> None:
        self._missing = 0

    def look(self, replica: str | None, *, given: bool) -> None:
        self._missing = 0 if given else self._missing + 1
        if self._missing == MISSING:
            log.warning(
                "%s gave no KV cache to take over, %d times, so prompts are prefilled twice: start vLLM there"
                " with a KV connector, or leave out 'prefill'",
                replica,
                MISSING,
            )


class DisaggregatedEngine:
    """Reserves a place at a replica of `decode`, prefills at one of `prefill`, then decodes at that place.

    In this order, because vLLM keeps a KV cache for half a minute only. A KV cache is read once. The decoding
    replica also prefills if decoding has failed before, if no replica of `prefill` works, or if prefill
    failed or returned no KV cache.

    Token counts are those of decoding, but `cached_tokens` those of a prefill elsewhere. Timing begins with
    the prefill.
    """

    def __init__(self, prefill: FleetEngine, decode: FleetEngine) -> None:
        self._prefill = prefill
        self._decode = decode
        self._missing = MissingKvCaches()

    @property
    def client(self) -> FleetClient:
        return self._decode.client

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        deadline = deadline or Deadline()
        handover: KvHandover = "no_server"
        failed = self._decode.has_failed(request.id)
        if failed or self._none_prefills():
            answer = await self._decode.complete(request, timeout_s=timeout_s, deadline=deadline)
            return replace(answer, handover="decode_failed" if failed else handover)
        prefilled: Completion | None = None

        async def prompt() -> Request:
            nonlocal prefilled, handover
            try:
                prefilled = await self._prefilled(request, timeout_s, deadline)
            except EngineError as error:
                if not error.retryable:
                    raise
                handover = "no_server" if isinstance(error, Unreachable) else "prefill_failed"
            if prefilled is None:
                return request
            given = prefilled.kv_transfer is not None
            self._missing.look(prefilled.replica, given=given)
            handover = "transferred" if given else "no_kv_cache"
            return decode_of(request, prefilled)

        answer = await self._decode.complete_first(
            request, timeout_s=timeout_s, deadline=deadline, prompt=prompt
        )
        usage, timing = answer.usage, answer.timing
        if prefilled is not None:
            timing = replace(timing, sent_s=prefilled.timing.sent_s)
        if prefilled is not None and handover == "transferred":
            usage = replace(usage, cached_tokens=prefilled.usage.cached_tokens)
        return replace(answer, usage=usage, timing=timing, handover=handover)

    @property
    def clients(self) -> TwoClients:
        return TwoClients(self._prefill.client, self._decode.client)

    async def close(self) -> None:
        await self._prefill.close()
        await self._decode.close()

    async def _prefilled(self, request: Request, timeout_s: float, deadline: Deadline) -> Completion | None:
        call = self._prefill.complete(prefill_of(request), timeout_s=timeout_s, deadline=deadline)
        trace = CALL_TRACE.get()
        if trace is None:
            return await while_some_prefill(call, self._none_prefills)
        trace.phase = "prefill"
        try:
            return await while_some_prefill(call, self._none_prefills)
        finally:
            trace.phase = ""

    def _none_prefills(self) -> bool:
        return none_prefills(self._prefill.client)


@dataclass(frozen=True, slots=True)
class TwoClients:
    prefill: FleetClient
    decode: FleetClient

    @property
    def sent(self) -> Collection[str]:
        return self.decode.sent

    @property
    def usable(self) -> int:
        return self.prefill.usable + self.decode.usable

    @property
    def full(self) -> bool:
        return self.prefill.full or self.decode.full

    @property
    def kv_usage(self) -> float:
        return self.decode.kv_usage

    @property
    def listing(self) -> int:
        return self.decode.listing

    @property
    def wanted(self) -> int | None:
        return self.decode.wanted

    @property
    def probed(self) -> bool:
        """Whether all replicas were asked. An unreadable list of prefill replicas is not waited for."""
        return self.decode.probed and (self.prefill.probed or bool(self.prefill.fault))

    def at_replicas(self) -> dict[str, int]:
        return {**self.prefill.at_replicas(), **self.decode.at_replicas()}

    def watch(self) -> None:
        self.prefill.watch()
        self.decode.watch()


def prefill_of(request: Request) -> Request:
    sampling = replace(request.sampling, max_tokens=1, extra=prefill_fields(request.sampling.extra))
    return replace(request, sampling=sampling)


def decode_of(request: Request, prefilled: Completion) -> Request:
    if prefilled.kv_transfer is None:
        return request
    extra = {**request.sampling.extra, KV_TRANSFER: prefilled.kv_transfer}
    return replace(request, sampling=replace(request.sampling, extra=extra))


@dataclass(frozen=True)
class DisaggregatedEngineFactory:
    prefill: FleetConfig
    decode: FleetConfig

    def __call__(self) -> DisaggregatedEngine:
        return DisaggregatedEngine(FleetEngine(self.prefill), FleetEngine(self.decode))


def engine_factory(fleet: FleetConfig, prefill: ReplicaList | None = None) -> EngineFactory:
    if prefill is None:
        return FleetEngineFactory(fleet)
    # vLLM returns the location of a KV cache only with answers in one piece.
    return DisaggregatedEngineFactory(replace(fleet, replicas=prefill, stream=False), fleet)


CHECK_S = 5.0
ASKED = "What is the weather like?"
FIX = "start vLLM there with a KV connector (--kv-transfer-config)"

Verdict = tuple[Literal["fit", "wrong", "away"], str]


def check_prefill(
    replicas: ReplicaList, model: str, *, chat: bool, api_key: SecretRef | None, key: str
) -> str:
    """Return warnings about the servers in `replicas`; blocks for at most three times `CHECK_S`.

    They are asked for their models, one token, and a KV cache, unless the API key is not available here.
    Raises `SettingError`, naming the setting `key`, if all answer and none can prefill for `model`.
    """
    return asyncio.run(_check(replicas, model, chat=chat, api_key=api_key, key=key))


async def describe_prefill(
    replicas: ReplicaList, model: str, *, chat: bool, api_key: SecretRef | None, key: str
) -> str:
    try:
        return await _check(replicas, model, chat=chat, api_key=api_key, key=key)
    except SettingError as error:
        return str(error)


async def _check(
    replicas: ReplicaList, model: str, *, chat: bool, api_key: SecretRef | None, key: str
) -> str:
    try:
        secret = None if api_key is None else read_secret(api_key)
    except SettingError:
        return ""
    verdicts = await _ask_all(replicas, _asked(model, chat=chat), secret)
    wrong = "; ".join(why for verdict, why in verdicts if verdict == "wrong")
    away = "; ".join(why for verdict, why in verdicts if verdict == "away")
    if any(verdict == "fit" for verdict, _ in verdicts):
        return f"{key}: {wrong}" if wrong else ""
    if not away:
        raise SettingError(f"{key}: {wrong}. Or leave {key} out: the others then do both")
    why = f"{away}; {wrong}" if wrong else away
    return f"{key}: prompts are prefilled where they are decoded until one of its servers answers: {why}"


def _asked(model: str, *, chat: bool) -> Request:
    messages = (Message("user", ASKED),) if chat else ()
    return prefill_of(
        Request("forebay-prefill-check", model, messages=messages, prompt=None if chat else ASKED)
    )


async def _ask_all(replicas: ReplicaList, asked: Request, secret: str | None) -> list[Verdict]:
    try:
        urls = await asyncio.wait_for(replicas.urls(), CHECK_S)
    except SettingError as error:
        return [("away", str(error))]
    except asyncio.TimeoutError:
        return [("away", f"the list of replicas was not read within {CHECK_S:g} s")]
    if not urls:
        return [("away", "there is none yet")]
    return await asyncio.gather(*(_ask(url, asked, secret) for url in urls))


async def _ask(url: str, asked: Request, secret: str | None) -> Verdict:
    # vLLM returns the location of a KV cache only with answers in one piece.
    replica = HttpReplica(url, api_key=secret, stream=False)
    try:
        try:
            names = [served.name for served in await replica.list_models(CHECK_S)]
        except NO_LIST:
            names = [asked.model]
        if asked.model not in names:
            serves = ", ".join(names) or "nothing"
            return "wrong", f"{url} serves {serves}, not {asked.model!r}: start that one there"
        answer = await replica.engine.complete(asked, timeout_s=CHECK_S)
    except EngineError as error:
        return "away" if error.retryable else "wrong", str(error)
    finally:
        await replica.close()
    if answer.kv_transfer is None:
        return "wrong", f"{url} gives no KV cache to take over, so that prompts are prefilled twice: {FIX}"
    return "fit", ""
