"""The published rule of NVIDIA Dynamo's KV router, as a peer to measure against."""

from __future__ import annotations

from forebay.fleet.base import Demand, Vector
from forebay.fleet.policies.choice import least
from forebay.fleet.state import Fleet


class Dynamo:
    """The least prefill blocks plus decode blocks, overlap credited in full and both weighted alike.

    Prefill blocks: the prompt tokens sent there that wait for their first token, and this prompt's, less what
    is cached of each. Decode blocks: those of all requests in flight there, and this one's. Source: Routing
    Concepts in Dynamo's documentation, with the default weights.
    """

    def choose(self, demand: Demand, cached: Vector, fleet: Fleet, now_s: float) -> int:
        # In tokens instead of blocks, and without what is the same for every replica.
        return least(fleet.prefill_tokens - cached + fleet.prompts, fleet)
