"""How many tokens vLLM gathers in one piece of a streamed answer.

Each piece costs its server and its reader far more than a token of it.
"""

from __future__ import annotations

import math

PIECE_S = 0.25
"""Often enough to notice a replica that has stopped."""
LEAST_PIECES = 8
"""Of a usual answer: the fleet learns a replica's speed and its number of slots from them."""
MAX_TOKENS = 64
FADE = 0.1


class PieceSize:
    """Learned from one replica's answers, so the first pieces have one token.

    `wanted`: tokens for each piece of the next answer. `found`: tokens that pieces had, also if the server
    ignores what is wanted.
    """

    def __init__(self) -> None:
        self._token_s = math.nan
        self._tokens = math.nan
        self.found = 1.0

    @property
    def wanted(self) -> int:
        if not self._tokens > 1:
            return 1
        most = min(PIECE_S / max(self._token_s, 1e-9), self._tokens / LEAST_PIECES, MAX_TOKENS)
        return max(1, int(most))

    def learn(self, tokens: int, pieces: int, took_s: float) -> None:
        """From an answer of `tokens` in `pieces`; `took_s`: from the first piece to the last."""
        if pieces < 2 or tokens < pieces:
            return
        # The first piece has one token.
        self._token_s = _faded(self._token_s, took_s / (tokens - 1))
        self._tokens = _faded(self._tokens, tokens)
        self.found += ((tokens - 1) / (pieces - 1) - self.found) * FADE


def _faded(before: float, new: float) -> float:
    return new if math.isnan(before) else before + (new - before) * FADE
