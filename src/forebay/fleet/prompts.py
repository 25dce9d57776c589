"""A prompt as the fleet sees it: prefix blocks by hash, and about how many tokens."""

from __future__ import annotations

from hashlib import blake2b

from forebay.records import Request

BLOCK_CHARS = 512
"""Characters of a prefix block: about eight of vLLM's blocks. A shared prefix is known to that exactly."""
MAX_BLOCKS = 4096
"""Blocks that are hashed of a prompt at most, the first ones: two million characters."""
CHARS_PER_TOKEN = 4.0
LEAST, MOST = 0.5, 16.0
FADE = 1 / 50
MASK = (1 << 60) - 1


def prompt_text(request: Request) -> str:
    """What the prefix cache sees of a request, near enough: the model's own marks between messages are not
    known here, and do not matter where they are the same for all."""
    if request.prompt is not None:
        return request.prompt
    return "".join(f"\0{message.role}\0{message.content}" for message in request.messages)


def text_blocks(text: str, block_chars: int = BLOCK_CHARS) -> tuple[int, ...]:
    """The whole blocks of `text` by hash, each standing for all the text up to its end.

    Two texts share exactly the blocks of their common beginning. Linear in the text, at most `MAX_BLOCKS`.
    """
    data = text.encode("utf-32-le", "surrogatepass")
    size = 4 * block_chars
    running = blake2b(digest_size=8)
    blocks = []
    for end in range(size, min(len(data), MAX_BLOCKS * size) + 1, size):
        running.update(data[end - size : end])
        blocks.append(int.from_bytes(running.digest(), "little") & MASK)
    return tuple(blocks)


class TokenEstimate:
    """Characters per token, learned from what replicas count. Starts at 4, stays from 0.5 to 16."""

    def __init__(self) -> None:
        self.chars_per_token = CHARS_PER_TOKEN

    def tokens(self, chars: int) -> int:
        """About how many tokens so much text has; at least 1."""
        return max(1, round(chars / self.chars_per_token))

    def learn(self, chars: int, tokens: int) -> None:
        """A prompt of `chars` characters had `tokens` tokens. Short ones, mostly template, say nothing."""
        if chars >= BLOCK_CHARS / 2 and tokens > 0:
            seen = min(max(chars / tokens, LEAST), MOST)
            self.chars_per_token += (seen - self.chars_per_token) * FADE
