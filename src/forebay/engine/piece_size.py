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
HIDDEN = 4.0
"""An answer with this many times the tokens asked for in each piece has tokens without pieces, of a tool call
for instance.
"""


class PieceSize:
    """Learned from one replica's answers, so the first pieces have one token.

    `wanted`: tokens for each piece of the next answer. `expected`: how many they will have, as far as the
    server does what is asked.
    """

    def __init__(self) -> None:
        self._token_s = math.nan
        self._tokens = math.nan
        self._obeyed = math.nan

    @property
    def wanted(self) -> int:
        if not self._tokens > 1:
            return 1
        most = min(PIECE_S / max(self._token_s, 1e-9), self._tokens / LEAST_PIECES, MAX_TOKENS)
        return max(1, int(most))

    def expected(self, asked: int) -> int:
        return max(1, round(asked * (1.0 if math.isnan(self._obeyed) else self._obeyed)))

    def learn(self, asked: int, tokens: int, pieces: int, took_s: float) -> None:
        """From an answer of `tokens`; `took_s`: from the first of its `pieces` to the last."""
        if pieces < 2 or tokens < pieces:
            return
        # The first piece has one token.
        of_piece = (tokens - 1) / (pieces - 1)
        if of_piece > HIDDEN * asked:
            return
        token_s = took_s / (tokens - 1)
        # Slower at once: a stalled replica must be noticed.
        self._token_s = token_s if token_s > self._token_s else _faded(self._token_s, token_s)
        self._tokens = _faded(self._tokens, tokens)
        self._obeyed = _faded(self._obeyed, of_piece / asked)


def _faded(before: float, new: float) -> float:
    return new if math.isnan(before) else before + (new - before) * FADE
