"""An `Engine` over two fleets: one prefills prompts, the other takes over the KV cache and decodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from forebay.engine import Deadline, EngineFactory
from forebay.engine.protocol import KV_TRANSFER
from forebay.errors import EngineError, Unreachable
from forebay.fleet.client import FleetClient
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import ReplicaList
from forebay.fleet.engine import FleetEngine, FleetEngineFactory
from forebay.fleet.kv_handover import MissingKvCaches, none_prefills, prefill_fields, while_some_prefill
from forebay.records import Completion, KvHandover, Request


class DisaggregatedEngine:
    """Reserves a place at a replica of `decode`, prefills at one of `prefill`, then decodes at that place.

    This order matters: vLLM keeps a KV cache for half a minute only, so nothing may wait between the two
    calls. Each fleet routes by its own estimate.

    A KV cache is read once. The decoding replica also prefills if decoding has failed before, if no replica
    of `prefill` works, or if prefill failed or returned no KV cache.

    Token counts are those of decoding, but `cached_tokens` those of a prefill elsewhere. Timing begins with
    the prefill. `Completion.handover` names the outcome.
    """

    def __init__(self, prefill: FleetEngine, decode: FleetEngine) -> None:
        self._prefill = prefill
        self._decode = decode
        self._missing = MissingKvCaches()

    @property
    def client(self) -> FleetClient:
        """The client of the decoding replicas."""
        return self._decode.client

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        """As `Engine.complete`; `timeout_s` applies to each of the two calls."""
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
        """Both fleets, seen as one by what counts replicas."""
        return TwoClients(self._prefill.client, self._decode.client)

    async def close(self) -> None:
        await self._prefill.close()
        await self._decode.close()

    async def _prefilled(self, request: Request, timeout_s: float, deadline: Deadline) -> Completion | None:
        """The result of the prefill; None if no replica for it works."""
        call = self._prefill.complete(prefill_of(request), timeout_s=timeout_s, deadline=deadline)
        return await while_some_prefill(call, self._none_prefills)

    def _none_prefills(self) -> bool:
        return none_prefills(self._prefill.client)


@dataclass(frozen=True, slots=True)
class TwoClients:
    """Shows two fleets as one `FleetClient`.

    Replicas of both count. Requests in flight are those of the decoding fleet, as each has a place there from
    the start.
    """

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
        """Whether either fleet has no room; the other then waits for it."""
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
    """The request for the prefilling replica: the same prompt, and one token."""
    sampling = replace(request.sampling, max_tokens=1, extra=prefill_fields(request.sampling.extra))
    return replace(request, sampling=sampling)


def decode_of(request: Request, prefilled: Completion) -> Request:
    """The request for the decoding replica, with the location of the prompt's KV cache."""
    if prefilled.kv_transfer is None:
        return request
    extra = {**request.sampling.extra, KV_TRANSFER: prefilled.kv_transfer}
    return replace(request, sampling=replace(request.sampling, extra=extra))


@dataclass(frozen=True)
class DisaggregatedEngineFactory:
    """Opens a `DisaggregatedEngine`. Reads the API key when called, and never holds it."""

    prefill: FleetConfig
    decode: FleetConfig

    def __call__(self) -> DisaggregatedEngine:
        return DisaggregatedEngine(FleetEngine(self.prefill), FleetEngine(self.decode))


def engine_factory(fleet: FleetConfig, prefill: ReplicaList | None = None) -> EngineFactory:
    """The factory for `fleet`, or for both if there are replicas for `prefill`."""
    if prefill is None:
        return FleetEngineFactory(fleet)
    # vLLM returns the location of a KV cache only with answers in one piece.
    return DisaggregatedEngineFactory(replace(fleet, replicas=prefill, stream=False), fleet)
