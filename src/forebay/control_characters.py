"""Text from outside on its way to a terminal or a page: without what would steer either.

A terminal obeys escape sequences, which begin with ESC or one character of C1, wherever they come from: a
failure text could set the window's title, hide lines or print others. Overrides of the writing direction show
one text where another stands.
"""

from __future__ import annotations

import logging
import re

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)
"""All of C0 but tab and line end, DEL, C1, halves of characters, marks and overrides of the writing
direction, line separators, and signs that nobody sees. Joiners stay: emoji and Persian need them."""


def replace_controls(text: str) -> str:
    """`text` with U+FFFD in place of each control character. Takes linear time."""
    return _CONTROL.sub("\ufffd", text)


class PlainFormatter(logging.Formatter):
    """Log lines without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return replace_controls(super().format(record))
