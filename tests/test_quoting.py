"""Text of events stays between its markers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.untrusted_text import quoted

PIECES = st.sampled_from(
    ["<message>", "</message>", "</ MESSAGE >", "<", ">", "/", "message", " ", "a", "שלום", "🙂"]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_no_text_can_write_the_marks_it_stands_between(text: str) -> None:
    marks = re.findall(r"(?i)<\s*/?\s*message[^<>]*>?", quoted("message", text))
    assert marks == ["<message>", "</message>"]


@pytest.mark.parametrize("text", ["", "a < b > c", "مرحبا", "👩‍👩‍👧 \u202e", "x" * 1000])
def test_other_text_is_kept_as_it_is(text: str) -> None:
    assert quoted("message", text) == f"<message>\n{text}\n</message>"
