"""Valid inputs, mutated in a few steps: cut, duplicated, moved, replaced, inserted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

MAX_BYTES = 1 << 18
"""Longer results are truncated: they take longer to make than to read."""
WIDE = 1 << 16

COMMON = (
    *(b"\0", b"\x1b", b"\x7f", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
    *(b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\t", b" ", b":", b",", b";", b'"', b"'", b"\\", b"/", b"%s"),
    *(b"{", b"}", b"[", b"]", b"{}", b"[]", b'""', b"null", b"true", b"NaN", b"-Infinity", b"\\ud800"),
    *(b"0", b"-1", b"1e400", b"1e-400", b"0.5", b"9223372036854775808", b"18446744073709551616"),
    *(b"9" * 5000, b"-" + b"9" * 400, b"A" * 70_000, b"[" * 1200, b'{"a":' * 1200, b"[" * 1000 + b"]" * 1000),
)

Change = Callable[[bytes, int, int, Sequence[bytes]], bytes]
"""Takes bytes, two numbers below `WIDE`, and words to insert; returns the changed bytes."""


def _flip(raw: bytes, a: int, b: int, words: Sequence[bytes]) -> bytes:
    at = _place(raw, a)
    return raw[:at] + bytes([raw[at] ^ (1 << b % 8)]) + raw[at + 1 :] if at < len(raw) else raw


def _put(raw: bytes, a: int, b: int, words: Sequence[bytes]) -> bytes:
    at = _place(raw, a)
    return raw[:at] + words[b % len(words)] + raw[at:]


def _replace(raw: bytes, a: int, b: int, words: Sequence[bytes]) -> bytes:
    """Replace the text between two punctuation marks with a word."""
    at = _place(raw, a)
    begin = max(raw.rfind(sign, 0, at) for sign in (b":", b",", b" ", b"[", b"\n")) + 1
    ends = [raw.find(sign, at) for sign in (b",", b"}", b"]", b"\n", b"\r")]
    end = min((found for found in ends if found >= 0), default=len(raw))
    return raw[:begin] + words[b % len(words)] + raw[end:]


def _cut(raw: bytes, a: int, b: int, words: Sequence[bytes]) -> bytes:
    at = _place(raw, a)
    return raw[:at] + raw[at + 1 + b % 64 :]


def _end(raw: bytes, a: int, b: int, words: Sequence[bytes]) -> bytes:
    return raw[: _place(raw, a)]


def _double(raw: bytes, a: int, b: int, words: Sequence[bytes]) -> bytes:
    at, size = _place(raw, a), 1 + b % 61
    times = (1, 2, 40, 2000)[b % 4]
    return raw[:at] + raw[at : at + size] * times + raw[at:]


def _move(raw: bytes, a: int, b: int, words: Sequence[bytes]) -> bytes:
    one, other = sorted((_place(raw, a), _place(raw, b)))
    return raw[:one] + raw[other:] + raw[one:other]


CHANGES: tuple[Change, ...] = (_flip, _put, _replace, _cut, _end, _double, _move)


def _place(raw: bytes, a: int) -> int:
    return a * (len(raw) + 1) // WIDE


def mutated(seeds: Sequence[bytes], words: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """One of `seeds`, or the beginning of one with the end of another, after up to five changes.

    Inserts `words`, which are meaningful to the reader, and words that are difficult for any.
    """
    known = (*words, *words, *COMMON)
    numbers = st.integers(0, WIDE - 1)
    changes = st.lists(st.tuples(st.sampled_from(CHANGES), numbers, numbers), max_size=5)

    def made(seed: bytes, other: bytes, steps: Sequence[tuple[Change, int, int]]) -> bytes:
        raw = seed if seed is other else seed[: len(seed) // 2] + other[len(other) // 2 :]
        for change, a, b in steps:
            raw = change(raw, a, b, known)[:MAX_BYTES]
        return raw

    one = st.sampled_from(list(seeds))
    return st.builds(made, one, one, changes)
