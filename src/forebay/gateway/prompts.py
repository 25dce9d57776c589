"""The prompt in a request's body: its text, and its number of tokens given as numbers.

Readers of OpenAI's own calls raise `Refusal` (400) if it is missing or of the wrong type; the replica checks
the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forebay.fleet.routing_request import message_text
from forebay.gateway.body import kind_of
from forebay.gateway.refusal import invalid_value

Document = Mapping[str, Any]
Reader = Callable[[Document], tuple[str, int]]


def messages_of(document: Document) -> tuple[str, int]:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid_value(
            "messages", f"expected a list with at least one message, found {kind_of(messages)}"
        )
    text = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid_value(f"messages[{at}]", f"expected an object, found {kind_of(message)}")
        role = message.get("role")
        if not isinstance(role, str):
            raise invalid_value(f"messages[{at}].role", f"expected a text, found {kind_of(role)}")
        text.append(message_text(role, message.get("content")))
    return "".join(text), 0


def prompt_of(document: Document) -> tuple[str, int]:
    return _prompt(document.get("prompt"), "prompt")


def input_of(document: Document) -> tuple[str, int]:
    """The texts to embed; vLLM also embeds a conversation (`messages`)."""
    if "input" not in document and "messages" in document:
        return messages_of(document)
    return _prompt(document.get("input"), "input")


def texts_in(*fields: str) -> Reader:
    """A reader of the texts in these fields, all optional and of any form."""

    def read(document: Document) -> tuple[str, int]:
        texts: list[str] = []
        tokens = sum(_collect(document.get(field), texts) for field in fields)
        return "\0".join(texts), tokens

    return read


def _collect(value: object, texts: list[str]) -> int:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        content = value.get("content", value.get("text"))
        texts.append(message_text(str(value.get("role", "")), content))
    elif isinstance(value, list):
        if value and isinstance(value[0], int):
            return len(value)
        return sum(_collect(item, texts) for item in value)
    return 0


def _prompt(prompt: object, param: str) -> tuple[str, int]:
    if isinstance(prompt, str):
        return prompt, 0
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            return "", len(prompt)
        texts = [one for one in prompt if isinstance(one, str)]
        return "\0".join(texts), sum(len(one) for one in prompt if isinstance(one, list))
    raise invalid_value(param, f"expected a text, tokens or a list of them, found {kind_of(prompt)}")
