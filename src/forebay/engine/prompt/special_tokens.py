"""Text from outside in a prompt, unable to write a model's special tokens.

A tokenizer takes `<|im_end|>` in a message for the end of the message, wherever it came from: whoever writes
a record could end the user's turn and begin the system's. The common chat formats (ChatML, Llama, Mistral,
Gemma, Phi, DeepSeek, Qwen, GPT-OSS) mark turns by names in `<…>` or `[…]`.
"""

from __future__ import annotations

import re

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
