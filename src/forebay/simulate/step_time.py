"""How long one engine step takes: a linear model of the work in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """Coefficients of the duration of one step, all in seconds.

    A step reads the weights (`step_s`), decodes one token for each running sequence (`decode_s` each, and
    `context_s` per token of KV cache that they attend to) and prefills a chunk of prompts (`prefill_s` per
    token, and `attention_s` per pair of a prompt token and a token before it); a step that prefills at all
    costs `prefill_step_s` more. Weights and KV cache are read at memory speed and prompts computed at
    arithmetic speed, which is why each kind of work is linear by itself.
    """

    step_s: float
    decode_s: float
    context_s: float
    prefill_s: float
    attention_s: float
    prefill_step_s: float = 0.0

    def decode_run_s(self, steps: int, sequences: int, context: int) -> float:
        """`steps` decode steps of the same sequences, with `context` tokens in all before the first.

        The context grows by one token per sequence and step: the sum of an arithmetic series.
        """
        grown = context * steps + sequences * (steps * (steps - 1) // 2)
        return steps * (self.step_s + sequences * self.decode_s) + grown * self.context_s

    def prefill_run_s(self, steps: int, chunk: int, start: int) -> float:
        """What `steps` chunks of `chunk` tokens add to their steps; `start` tokens precede the first."""
        pairs = chunk * (steps * (start + chunk / 2) + chunk * (steps * (steps - 1) / 2))
        return steps * (self.prefill_step_s + chunk * self.prefill_s) + pairs * self.attention_s
