"""An inference gateway of Kubernetes' Gateway API as the engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from forebay.clock import Clock, SystemClock
from forebay.engine import Deadline
from forebay.engine.client import HttpEngine
from forebay.engine.replica import HttpReplica, probe_error
from forebay.errors import (
    EngineError,
    ModelNotFound,
    ProtocolViolation,
    SettingError,
    Unauthorized,
    Unreachable,
)
from forebay.records import Completion, Request
from forebay.settings import SecretRef, read_secret

OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
FIRST_TOKEN = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
"""The deadline of the first token. No header has a request's deadline: the time left is an upper bound, and
the picker orders requests by it.
"""


@dataclass(frozen=True, slots=True)
class PickerHeaders:
    """Headers for an endpoint picker: those of llm-d, and their older names in the Gateway API inference
    extension.

    `objectives`: InferenceObjectives with the picker's priorities; a request gets the greatest that is not
    above its own, or else the smallest. `fairness_id` names the flow that shares one turn.
    """

    objectives: tuple[tuple[str, int], ...] = ()
    fairness_id: str | None = None

    def of(self, request: Request, left_s: float) -> dict[str, str]:
        found: dict[str, str] = {}
        objective = self._objective(request.priority)
        if objective is not None:
            found |= dict.fromkeys(OBJECTIVE, objective)
        if self.fairness_id is not None:
            found |= dict.fromkeys(FAIRNESS, self.fairness_id)
        if left_s < math.inf:
            found |= dict.fromkeys(FIRST_TOKEN, str(max(1, math.floor(left_s * 1000))))
        return found

    def _objective(self, priority: int) -> str | None:
        if not self.objectives:
            return None
        least = min(self.objectives, key=lambda each: each[1])
        below = [each for each in self.objectives if each[1] <= priority]
        return max(below, key=lambda each: each[1], default=least)[0]


UNFIT = (Unauthorized, ModelNotFound, ProtocolViolation)
PROBE_S = 10.0


class GatewayEngine:
    """Answers through a gateway. Belongs to one event loop.

    If it refuses the key or the model of a probe, too, or answers it in another protocol, `Unreachable` is
    raised, and `on_usable` is called with 0, and with 1 after the next answer.
    """

    def __init__(
        self, url: str, headers: PickerHeaders, api_key: str | None = None, *, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._engine = HttpEngine(url, api_key=api_key, clock=self._clock, headers_of=headers.of)
        self._gateway = HttpReplica(url, api_key=api_key, clock=self._clock)
        self._probe: asyncio.Task[EngineError | None] | None = None
        self._refused = False
        self.on_usable: Callable[[int], None] = lambda usable: None

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        deadline = deadline or Deadline()
        try:
            completion = await self._engine.complete(request, timeout_s=timeout_s, deadline=deadline)
        except UNFIT as error:
            if not await self._refuses_all(request, deadline.left_s(self._clock.monotonic_s())):
                raise
            self._refused = True
            self.on_usable(0)
            raise Unreachable(str(error)) from None
        if self._refused:
            self._refused = False
            self.on_usable(1)
        return completion

    async def _refuses_all(self, request: Request, within_s: float) -> bool:
        if self._probe is None or self._probe.done():
            probing = _failure(self._gateway, request.model, chat=request.prompt is None)
            self._probe = asyncio.get_running_loop().create_task(probing)
        probe = self._probe
        await asyncio.wait({probe}, timeout=None if math.isinf(within_s) else max(0.0, within_s))
        return probe.done() and isinstance(probe.result(), UNFIT)

    async def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        await self._engine.close()
        await self._gateway.close()


async def _failure(gateway: HttpReplica, model: str, *, chat: bool) -> EngineError | None:
    try:
        await gateway.probe(model, PROBE_S, chat=chat)
    except EngineError as error:
        return error
    return None


@dataclass(frozen=True)
class InferenceGatewayFactory:
    """The gateway's endpoint picker chooses the replica and queues requests.

    Neither health nor metrics are read: they would be those of a random replica. Reads the API key when
    called.
    """

    url: str
    headers: PickerHeaders
    api_key: SecretRef | None = None

    def __call__(self) -> GatewayEngine:
        key = None if self.api_key is None else read_secret(self.api_key)
        return GatewayEngine(self.url, self.headers, key)

    def why_refused(self, model: str, *, within_s: float) -> str:
        """Why the gateway does not answer a probe; empty if it does. Blocks."""
        try:
            key = None if self.api_key is None else read_secret(self.api_key)
        except SettingError as error:
            return str(error)
        return str(asyncio.run(probe_error(self.url, model, api_key=key, within_s=within_s, chat=True)) or "")
