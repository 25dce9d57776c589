"""An `Engine` over two fleets: one prefills the prompt, the other takes over its KV cache and decodes."""

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
    """A request gets a place at a replica of `decode`, is prefilled at one of `prefill`, in one token, and is
    decoded at that place, which takes over its KV cache.

    In this order: vLLM keeps a KV cache for half a minute only, and then gives its blocks to other prompts.
    So nothing may wait between the two calls. Each fleet routes by its own estimate: of prompts and prefix
    caches there, of what decodes here.

    A KV cache is read once. A request whose decoding failed is prefilled where it is decoded from then on, as
    `FleetEngine` has it; so is every one while no replica of `prefill` works, or where it failed there or
    gave no KV cache.

    The answer's token counts are those of decoding, but `cached_tokens` those of a prefill elsewhere; its
    timing begins with the prefill. `Completion.handover` says which way it came about.
    """

    def __init__(self, prefill: FleetEngine, decode: FleetEngine) -> None:
        self._prefill = prefill
        self._decode = decode
        self._missing = MissingKvCaches()

    @property
    def client(self) -> FleetClient:
        """That of the replicas that decode."""
        return self._decode.client

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        """As `Engine` has it; `timeout_s` is of each of the two calls."""
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
        """The two fleets, as one is seen by what counts replicas."""
        return TwoClients(self._prefill.client, self._decode.client)

    async def close(self) -> None:
        await self._prefill.close()
        await self._decode.close()

    async def _prefilled(self, request: Request, timeout_s: float, deadline: Deadline) -> Completion | None:
        """What a replica that prefills made of it; None where there is none that works any more."""
        call = self._prefill.complete(prefill_of(request), timeout_s=timeout_s, deadline=deadline)
        return await while_some_prefill(call, self._none_prefills)

    def _none_prefills(self) -> bool:
        return none_prefills(self._prefill.client)


@dataclass(frozen=True, slots=True)
class TwoClients:
    """What `FleetClient` says of a fleet, of two that share the work: replicas of both count. A request has
    its place at one that decodes from the first on, so those there are all that are in flight."""

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
        """Whether either has room for no more: the other then waits for it."""
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
        """Whether all were asked; a list of those that prefill that cannot be read is not waited for."""
        return self.decode.probed and (self.prefill.probed or bool(self.prefill.fault))

    def at_replicas(self) -> dict[str, int]:
        return {**self.prefill.at_replicas(), **self.decode.at_replicas()}

    def watch(self) -> None:
        self.prefill.watch()
        self.decode.watch()


def prefill_of(request: Request) -> Request:
    """`request` for a replica that prefills: the same prompt, and one token."""
    sampling = replace(request.sampling, max_tokens=1, extra=prefill_fields(request.sampling.extra))
    return replace(request, sampling=sampling)


def decode_of(request: Request, prefilled: Completion) -> Request:
    """`request` for a replica that decodes, with where the KV cache of its prompt is."""
    if prefilled.kv_transfer is None:
        return request
    extra = {**request.sampling.extra, KV_TRANSFER: prefilled.kv_transfer}
    return replace(request, sampling=replace(request.sampling, extra=extra))


@dataclass(frozen=True)
class DisaggregatedEngineFactory:
    """Opens a `DisaggregatedEngine`. Holds where the API key is, never the key; reads it when called."""

    prefill: FleetConfig
    decode: FleetConfig

    def __call__(self) -> DisaggregatedEngine:
        return DisaggregatedEngine(FleetEngine(self.prefill), FleetEngine(self.decode))


def engine_factory(fleet: FleetConfig, prefill: ReplicaList | None = None) -> EngineFactory:
    """What opens `fleet`, or where there are replicas for `prefill`, both."""
    if prefill is None:
        return FleetEngineFactory(fleet)
    # vLLM says where a KV cache is in answers in one piece alone.
    return DisaggregatedEngineFactory(replace(fleet, replicas=prefill, stream=False), fleet)
