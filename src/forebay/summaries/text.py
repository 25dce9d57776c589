"""Event texts on their way into a prompt: cleaned, clipped, escaped, and weighed in tokens."""

from __future__ import annotations

import re

from forebay.engine.prompt import escape_special_tokens

BYTES_PER_TOKEN = 4
NO_TEXT = "(no text)"

_GONE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters, overrides of the writing direction, and tags that no reader sees. Joiners stay: emoji
and Persian need them."""
_SPACE = re.compile(r"\s+")


def clean(text: str, max_tokens: int) -> str:
    """`text` on one line without what cannot be seen, in at most `max_tokens` tokens; a clipped one says so.

    Surrogates without a partner become question marks; an empty text becomes `(no text)`.
    """
    text = text.strip()
    # White space and controls are taken from a part, so that a text of a megabyte costs no more than that.
    part = text[: 8 * BYTES_PER_TOKEN * max_tokens].encode("utf-8", "replace").decode()
    line = _SPACE.sub(" ", _GONE.sub("", part)).strip()
    if not line:
        return NO_TEXT
    if len(part) == len(text) and tokens(line) <= max_tokens:
        return line
    note = f"… ({len(text):,} characters)"
    room = max_tokens * BYTES_PER_TOKEN - len(note.encode())
    for end, char in enumerate(line):
        # By itself a sign is escaped wherever it may be.
        room -= len(escape_special_tokens(char).encode()) + (char == "]")
        if room < 0:
            return line[:end] + note
    return line + note


def tokens(text: str) -> int:
    """An estimate of the tokens of `text` in a prompt, at least 1: one per four bytes of UTF-8, escaped."""
    return max(1, -(-len(escape_special_tokens(text).encode("utf-8", "replace")) // BYTES_PER_TOKEN))
