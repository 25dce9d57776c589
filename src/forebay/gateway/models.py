"""The list of models that clients see: what the replicas report, with nothing left out."""

from __future__ import annotations

from typing import Any

from forebay.engine.replica import ServedModel
from forebay.fleet.client import FleetClient
from forebay.gateway.refusal import no_replica, unknown_model


class ModelList:
    """What `/v1/models` answers for the replicas of `fleet`."""

    def __init__(self, fleet: FleetClient) -> None:
        self._fleet = fleet

    def cards(self) -> list[dict[str, Any]]:
        """One entry per model. Raises `Refusal` (503) while no replica has reported its models."""
        served = self._fleet.models
        if not served:
            raise no_replica("no replica has reported yet which models it serves; try again later")
        return [_card(model) for model in served]

    def card(self, name: str) -> dict[str, Any]:
        """The entry of one model. Raises `Refusal` (404, or 503 as `cards`)."""
        found = next((card for card in self.cards() if card["id"] == name), None)
        if found is None:
            raise unknown_model(name)
        return found


def _card(model: ServedModel) -> dict[str, Any]:
    length = {} if model.max_model_len is None else {"max_model_len": model.max_model_len}
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "forebay", **model.card, **length}
