"""Prefills prompts at one replica for another one that takes over the KV cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from forebay.clients.http.readers import PulledAnswer
from forebay.clients.http.server import HttpClient
from forebay.clock import Clock
from forebay.engine.completion_reader import MAX_ANSWER_BYTES, MAX_ERROR_BYTES
from forebay.engine.failures import Redactor, error_from_status, read_retry_after_s
from forebay.engine.load import LOAD_HEADER, parse_load_header
from forebay.engine.protocol import KV_TRANSFER
from forebay.errors import (
    AttemptTimeout,
    BadRequest,
    EngineError,
    Overloaded,
    ProtocolViolation,
    ServerFault,
    Unreachable,
)
from forebay.fleet.client import FleetClient
from forebay.fleet.disaggregated import MissingKvCaches, none_prefills, prefill_fields, while_some_prefill
from forebay.fleet.lease import ReplicaLease
from forebay.gateway.asgi import TimeLimit, TimeOver
from forebay.gateway.exchange import RelayedCall, RelayRules
from forebay.gateway.replica import Lost, UntilLost, post, slow_start
from forebay.gateway.tracing import Attempt
from forebay.gateway.wire import usage_in
from forebay.json_numbers import deeper_than
from forebay.records import KvHandover

LOG = logging.getLogger("forebay.gateway")
PLACE_S = 30.0
"""Wait no longer for a prefill replica: the request's own place can prefill, too."""
MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Outcome of a prefill. `kv_transfer`: the KV cache, if any. `faults`: replicas that answered 500, maybe
    by the request's fault.
    """

    handover: KvHandover
    kv_transfer: Mapping[str, Any] | None = None
    faults: tuple[tuple[ReplicaLease, EngineError], ...] = ()


class Prefills:
    def __init__(self, fleet: FleetClient, client: HttpClient, rules: RelayRules, clock: Clock) -> None:
        self._fleet = fleet
        self._client = client
        self._rules = rules
        self._clock = clock
        self._quote = Redactor(fleet.api_key)
        self._missing = MissingKvCaches()

    def none_works(self, model: str) -> bool:
        served = self._fleet.models
        return none_prefills(self._fleet) or (bool(served) and model not in {one.name for one in served})

    async def prefill(self, call: RelayedCall) -> Prefilled:
        """Prefill the prompt; try another replica if one fails. Never raises for replicas."""
        found = await while_some_prefill(self._any(call), lambda: self.none_works(call.asked.model))
        return found or Prefilled("no_server")

    async def _any(self, call: RelayedCall) -> Prefilled:
        asked = call.asked
        body = prefill_body(asked.body)
        tried: dict[str, int] = {}
        found = Prefilled("prefill_failed")
        for _ in range(self._rules.attempts):
            demand = self._fleet.demand(
                asked.text,
                deadline_s=min(self._rules.place_s, PLACE_S),
                tenant=call.tenant,
                session=asked.session,
                avoid=tuple(tried.values()),
                model=asked.model,
            )
            try:
                async with self._fleet.place(demand, chars=len(asked.text), source=call.source) as lease:
                    lease.non_streaming()
                    tried[lease.url] = lease.number
                    try:
                        attempt = call.trace.attempt(asked, lease.url, prefill=True)
                        with attempt, UntilLost(lease):
                            return await self._at(lease, call, body, attempt)
                    except EngineError as failed:
                        error = failed
                        # If the decoding replica answers 500, too, the request is to blame.
                        lease.failed(error, blame=not isinstance(error, ServerFault))
                    except Lost as lost:
                        error = AttemptTimeout(str(lost))
            except (Overloaded, Unreachable) as no_place:
                return Prefilled(_reason(no_place))
            if isinstance(error, BadRequest):
                # The client gets this error from the decoding replica.
                break
            LOG.warning("request %s, prefill: %s", call.id, error)
            faults = ((lease, error),) if isinstance(error, ServerFault) else ()
            found = Prefilled(_reason(error), faults=faults)
            replicas = self._fleet.replicas(asked.model)
            others = any(not why and url not in tried for url, why in replicas.items())
            if faults or not others:
                break
        return found

    async def _at(self, lease: ReplicaLease, call: RelayedCall, body: bytes, attempt: Attempt) -> Prefilled:
        rules, url = self._rules, lease.url
        response: PulledAnswer | None = None
        call.sent = True
        try:
            with TimeLimit(rules.first_byte_s):
                response = await post(self._client, url, call, body, attempt, connect_s=rules.connect_s)
                if response.answer_head.status != 200:
                    raise await self._refusal(response, url, call.asked.model)
                answer = await response.read_start(MAX_ANSWER_BYTES + 1)
        except TimeOver:
            raise slow_start(url, rules.first_byte_s) from None
        finally:
            if response is not None:
                response.close()
        if len(answer) > MAX_ANSWER_BYTES:
            raise ProtocolViolation(f"{url} sent an answer of more than {MAX_ANSWER_BYTES} bytes")
        kv_transfer = kv_transfer_in(answer, url)
        load = parse_load_header(response.answer_head.get(LOAD_HEADER), observed_s=self._clock.monotonic_s())
        lease.load(load)
        # After the counts comes the description of the KV cache: kilobytes for a long prompt.
        lease.done(usage_in(answer, 1))
        call.prefilled = True
        self._missing.look(url, given=kv_transfer is not None)
        return Prefilled("no_kv_cache" if kv_transfer is None else "transferred", kv_transfer)

    async def _refusal(self, response: PulledAnswer, url: str, model: str) -> EngineError:
        head = response.answer_head
        retry_after_s = read_retry_after_s(head.get("Retry-After"), now_ms=self._clock.wall_ms())
        body = await response.read_start(MAX_ERROR_BYTES)
        return error_from_status(
            head.status,
            body,
            replica=url,
            model=model,
            quote=self._quote,
            retry_after_s=retry_after_s,
            location=head.get("Location"),
        )


def _reason(error: EngineError) -> KvHandover:
    return "no_server" if isinstance(error, Unreachable) else "prefill_failed"


def prefill_body(body: bytes) -> bytes:
    return orjson.dumps(prefill_fields(orjson.loads(body)))


def decode_body(body: bytes, kv_transfer: Mapping[str, Any]) -> bytes:
    member = orjson.dumps(KV_TRANSFER) + b":" + orjson.dumps(kv_transfer)
    return body[: body.rindex(b"}")] + b"," + member + b"}"


def kv_transfer_in(answer: bytes, url: str) -> Mapping[str, Any] | None:
    """The KV cache described in an answer, or None. Raises `ProtocolViolation` for an invalid one."""
    try:
        document = orjson.loads(answer)
    except orjson.JSONDecodeError:
        document = None
    found = document.get(KV_TRANSFER) if isinstance(document, dict) else answer
    if found is None:
        return None
    if not isinstance(found, dict) or deeper_than(found, MAX_DEPTH):
        raise ProtocolViolation(f"{url} gave no answer in JSON whose {KV_TRANSFER!r} is an object")
    return found
