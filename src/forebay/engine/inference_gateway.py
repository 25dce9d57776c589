"""An inference gateway of Kubernetes' Gateway API as the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forebay.engine.client import HttpEngine
from forebay.records import Request
from forebay.settings import SecretRef, read_secret

OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
FIRST_TOKEN = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
"""The deadline of the first token. There is no header for a request's deadline: the time left is an upper
bound, and the picker orders requests by it."""


@dataclass(frozen=True, slots=True)
class PickerHeaders:
    """Headers of a request for an endpoint picker: those of llm-d's, each with the older name that it had in
    the Gateway API inference extension.

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


@dataclass(frozen=True)
class InferenceGatewayFactory:
    """The gateway's endpoint picker chooses the replica and queues requests.

    Neither health nor metrics are read: they would be those of a random replica. Reads the API key when
    called.
    """

    url: str
    headers: PickerHeaders
    api_key: SecretRef | None = None

    def __call__(self) -> HttpEngine:
        key = None if self.api_key is None else read_secret(self.api_key)
        return HttpEngine(self.url, api_key=key, headers_of=self.headers.of)
