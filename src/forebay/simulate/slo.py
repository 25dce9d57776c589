"""What is expected of an answer, so that it counts as good."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.simulate.engine import EngineModel
from forebay.simulate.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Slo:
    """First token within `ttft_s` and `ttft_ratio` times what the prompt takes on an idle replica without a
    cache; then, on average, a token every `tpot_s`.

    A fixed limit would ask the impossible of long prompts, which take many seconds alone, and nothing of
    short ones. A second goes unnoticed in a conversation; five tokens a second are about what people read.
    """

    ttft_s: float = 1.0
    ttft_ratio: float = 5.0
    tpot_s: float = 0.2

    def due_s(self, arrived_s: float, prompt_tokens: int, model: EngineModel) -> float:
        """When the first token of a request should come."""
        return arrived_s + self.ttft_s + self.ttft_ratio * model.alone_s(prompt_tokens)

    def met(self, sequence: Sequence) -> bool:
        """Whether a request was answered as expected; one that was given up was not."""
        if not sequence.first_token_s <= sequence.demand.due_s:
            return False
        took_s = sequence.finished_s - sequence.first_token_s
        return took_s <= self.tpot_s * max(1, sequence.output_tokens - 1)
