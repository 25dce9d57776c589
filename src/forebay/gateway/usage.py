"""Token counts that engines write at the end of an answer."""

from __future__ import annotations

import re

from forebay.records import Usage

PROMPT = re.compile(rb'"(?:prompt|input)_tokens" ?: ?([0-9]{1,9})')
COMPLETION = re.compile(rb'"(?:completion|output)_tokens" ?: ?([0-9]{1,9})')
CACHED = re.compile(rb'"cached_tokens" ?: ?([0-9]{1,9})')
TOTAL = re.compile(rb'"total_tokens" ?: ?([0-9]{1,9})')
CACHE_READ = re.compile(rb'"cache_read_input_tokens" ?: ?([0-9]{1,9})')
CACHE_CREATION = re.compile(rb'"cache_creation_input_tokens" ?: ?([0-9]{1,9})')


def counts_in(tail: bytes) -> Usage | None:
    prompt, completion, total = (_last(pattern, tail) for pattern in (PROMPT, COMPLETION, TOTAL))
    if prompt is None and total is None:
        return None
    read, created = _last(CACHE_READ, tail), _last(CACHE_CREATION, tail)
    cached = _last(CACHED, tail) if read is None else read
    # Anthropic's input_tokens exclude cached ones; some rerankers count only the total.
    sent = (total or 0) - (completion or 0) if prompt is None else prompt + (read or 0) + (created or 0)
    return Usage(max(0, sent), completion or 0, cached or 0)


NO_CHOICES = re.compile(rb'"choices" ?: ?\[ ?\]')
EVENT_END = re.compile(rb"\r?\n\r?\n")
MAX_EVENT_BYTES = 65_536


class UsageFilter:
    """Removes the event with the token count from a stream whose client did not ask for it."""

    def __init__(self) -> None:
        self._rest = b""

    def pass_on(self, chunk: bytes) -> bytes:
        """The events that `chunk` completes; a longer one than `MAX_EVENT_BYTES` is passed on in pieces."""
        data, kept, begin = self._rest + chunk, [], 0
        # What is left of before has no end of an event, but may have its beginning.
        for end in EVENT_END.finditer(data, max(0, len(self._rest) - 3)):
            event = data[begin : end.end()]
            if not _is_count(event):
                kept.append(event)
            begin = end.end()
        self._rest = data[begin:]
        if len(self._rest) > MAX_EVENT_BYTES:
            kept.append(self.rest())
        return b"".join(kept)

    def rest(self) -> bytes:
        """What follows the last complete event."""
        rest, self._rest = self._rest, b""
        return rest


def _is_count(event: bytes) -> bool:
    return b'"usage"' in event and NO_CHOICES.search(event) is not None


def usage_in(tail: bytes, events: int) -> Usage:
    """The counts at the end of an answer; without them, one token per event."""
    return counts_in(tail) or Usage(0, events, 0)


def _last(pattern: re.Pattern[bytes], tail: bytes) -> int | None:
    found = pattern.findall(tail)
    return int(found[-1]) if found else None
