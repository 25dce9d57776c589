"""Text from outside, made unable to steer what it is put into: a terminal, a page, a prompt.

A terminal obeys escape sequences, which begin with ESC or one character of C1, wherever they come from: a
failure text could set the window's title, hide lines or print others. Overrides of the writing direction show
one text where another stands.

A tokenizer takes `<|im_end|>` in a message for the end of the message, wherever it came from: whoever writes
a record could end the user's turn and begin the system's. The common chat formats (ChatML, Llama, Mistral,
Gemma, Phi, DeepSeek, Qwen, GPT-OSS) mark turns by names in `<…>` or `[…]`.
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


OPENERS = "<[\uff1c\ufe64\uff3b\ufe47\u226e"
"""With those that a tokenizer's normalisation may turn into `<` and `[`."""
HARMLESS = " \t\r\n0123456789=-+*%~<[>](){}\"'.,:;\\&"
"""What may stand behind an opener: no special token begins so, and ordinary text often does."""
_MARK = re.compile(rf"[{re.escape(OPENERS)}](?![{re.escape(HARMLESS)}])|\](?=[~<])")


def escape_special_tokens(text: str) -> str:
    """`text` with a blank behind each `<` and `[` that could begin a special token: `< |im_end|>`, `[ INST]`.

    Whatever the model's vocabulary is, none of its tokens that begin with `<` or `[` and a letter or a sign
    such as `|` and `/` is left in the text, nor any that text behind it could complete. Other text stays as
    it is. Escaping twice changes no more than once. Takes linear time.
    """
    # Most texts have nothing to escape, and a replacement is parsed at each call, before anything is found.
    return _MARK.sub(r"\g<0> ", text) if _MARK.search(text) else text


def between(before: str, after: str) -> str:
    """What keeps the end of `before` and the beginning of `after` from being a special token: a blank, or
    nothing where none is needed."""
    return " " if before and after and _MARK.match(before[-1] + after[0]) else ""
