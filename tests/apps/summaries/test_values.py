"""Texts of events: on one line, bounded, escaped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.summaries.values import NO_TEXT, clean, is_clipped, tokens


@given(st.text(st.characters(exclude_categories=()), max_size=400), st.integers(20, 200))
def test_a_clean_text_is_one_bounded_line(text: str, most: int) -> None:
    line = clean(text, most)
    assert line
    assert len(line.splitlines()) == 1
    assert tokens(line) <= most
    assert line.encode()
    assert not any(ord(char) < 32 or 0x202A <= ord(char) <= 0x202E for char in line)


@pytest.mark.parametrize("text", ["", " \n\t ", "\x00\x01", "\u202e", "\U000e0041"])
def test_empty_text_is_shown_as_empty(text: str) -> None:
    assert clean(text, 50) == NO_TEXT


@pytest.mark.timeout(60)  # In linear time, it takes milliseconds.
def test_megabyte_text_is_clipped_and_shows_its_length() -> None:
    line = clean("x" * 1_000_000, 100)
    assert line.endswith("… (1,000,000 characters)")
    assert (is_clipped(line), is_clipped("x" * 1000)) == (True, False)
    assert tokens(line) <= 100


def test_text_after_long_white_space_is_found() -> None:
    assert clean(" \n" * 100_000 + "here it is", 50) == "here it is"


def test_emoji_and_right_to_left_scripts_are_kept() -> None:
    for text in ("👩‍👩‍👧 ok", "שלום עולם", "می‌خواهم", "日本語"):
        assert clean(text, 50) == text
