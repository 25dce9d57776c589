"""One request on its way through a simulated replica."""

from __future__ import annotations

from math import nan

from forebay.fleet.base import Demand


class Sequence:
    """What a request asks for, and what became of it.

    Moments are simulated seconds; those that never came are NaN. `hit_tokens` of the prompt were cached when
    it was first admitted.
    """

    __slots__ = (
        "arrived_s",
        "blocks",
        "demand",
        "finish_step",
        "finished_s",
        "first_token_s",
        "generated",
        "hit_tokens",
        "index",
        "output_tokens",
        "preemptions",
        "prefilled",
        "prompt_tokens",
        "replica",
        "residue",
        "target",
    )

    def __init__(self, index: int, arrived_s: float, demand: Demand, output_tokens: int) -> None:
        self.index = index
        self.arrived_s = arrived_s
        self.demand = demand
        self.prompt_tokens = demand.prompt_tokens
        self.blocks = demand.blocks
        self.output_tokens = output_tokens
        self.replica = -1
        self.hit_tokens = 0
        self.preemptions = 0
        self.first_token_s = nan
        self.finished_s = nan
        # While it runs: tokens generated; tokens computed of `target`, those to compute before the next is
        # generated; the step that generates the last one; at which steps it needs one more unit.
        self.generated = 0
        self.prefilled = 0
        self.target = 0
        self.finish_step = -1
        self.residue = 0
