"""An `Engine` over two fleets: one prefills the prompt, the other takes over its KV cache and decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forebay.engine import Deadline, EngineFactory
from forebay.engine.protocol import KV_TRANSFER
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.engine import FleetEngine, FleetEngineFactory
from forebay.records import JSON, Completion, Request, Usage

PREFILL: dict[str, JSON] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""How vLLM is asked to keep the KV cache of a prompt for another replica, and to say where it is. Source:
vLLM, docs/features/nixl_connector_usage.md and tests/v1/kv_connector/nixl_integration/toy_proxy_server.py."""
OF_THE_LENGTH = ("max_completion_tokens", "min_tokens")
"""Fields of a request that would ask for more than one token."""


class DisaggregatedEngine:
    """A request is prefilled at a replica of `prefill`, in one token, and then decoded at one of `decode`.

    Each fleet routes by its own estimate: of prompts and prefix caches there, of what decodes here. A KV
    cache is read once: what fails in decoding is raised, and its caller's next try prefills anew. A prefill
    that hands out no KV cache, as where the first token is the last, leaves the prompt to the replica that
    decodes.

    The answer's token counts are those of decoding but for `cached_tokens`, which are of the prefill; its
    timing begins with the prefill.
    """

    def __init__(self, prefill: FleetEngine, decode: FleetEngine) -> None:
        self._prefill = prefill
        self._decode = decode

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        """As `Engine` has it; `timeout_s` is of each of the two calls."""
        deadline = deadline or Deadline()
        prompt = await self._prefill.complete(prefill_of(request), timeout_s=timeout_s, deadline=deadline)
        answer = await self._decode.complete_once(
            decode_of(request, prompt),
            timeout_s=timeout_s,
            deadline=deadline,
            transferred=prompt.kv_transfer is not None,
        )
        usage, timing = answer.usage, answer.timing
        return replace(
            answer,
            usage=Usage(usage.prompt_tokens, usage.completion_tokens, prompt.usage.cached_tokens),
            timing=replace(timing, sent_s=min(timing.sent_s, prompt.timing.sent_s)),
        )

    async def close(self) -> None:
        await self._prefill.close()
        await self._decode.close()


def prefill_of(request: Request) -> Request:
    """`request` for a replica that prefills: one token, whatever form the answer is to have."""
    extra = {key: value for key, value in request.sampling.extra.items() if key not in OF_THE_LENGTH}
    sampling = replace(request.sampling, max_tokens=1, extra={**extra, KV_TRANSFER: PREFILL})
    return replace(request, sampling=sampling, schema=None)


def decode_of(request: Request, prompt: Completion) -> Request:
    """`request` for a replica that decodes, with where the KV cache of its prompt is."""
    if prompt.kv_transfer is None:
        return request
    extra = {**request.sampling.extra, KV_TRANSFER: prompt.kv_transfer}
    return replace(request, sampling=replace(request.sampling, extra=extra))


@dataclass(frozen=True)
class DisaggregatedEngineFactory:
    """Opens a `DisaggregatedEngine`. Holds where the API key is, never the key; reads it when called."""

    prefill: FleetConfig
    decode: FleetConfig

    def __call__(self) -> DisaggregatedEngine:
        return DisaggregatedEngine(FleetEngine(self.prefill), FleetEngine(self.decode))


def engine_factory(fleet: FleetConfig, prefill: Sequence[str] = ()) -> EngineFactory:
    """What opens `fleet`, or where there are addresses of replicas for `prefill`, both."""
    if not prefill:
        return FleetEngineFactory(fleet)
    # vLLM says where a KV cache is in answers in one piece alone.
    return DisaggregatedEngineFactory(
        replace(fleet, replicas=FixedReplicas(tuple(prefill)), stream=False), fleet
    )
