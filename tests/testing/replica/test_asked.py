"""Any body is either a request or a reason for a 400."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.testing.replica.asked import ParsedRequest, read_body

json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "min_tokens", "temperature"),
    *("n", "stop", "stream", "stream_options", "logprobs", "top_logprobs", "tools", "tool_choice"),
)
TALK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@given(st.dictionaries(st.sampled_from(KEYS), json), st.booleans())
def test_any_body_is_a_request_or_a_value_error(changes: dict[str, Any], chat: bool) -> None:
    try:
        asked = read_body(orjson.dumps({**TALK, "prompt": "hello", **changes}), chat=chat)
    except ValueError:
        return
    assert asked.prompts
    assert asked.max_tokens >= 1
    assert asked.n >= 1


@pytest.mark.parametrize(
    ("body", "chat", "max_tokens"),
    [
        (TALK, True, 99),
        (TALK | {"max_tokens": 7}, True, 7),
        (TALK | {"max_tokens": 7, "max_completion_tokens": 5}, True, 5),
        ({"model": "m", "prompt": "hello"}, False, 16),
        ({"model": "m", "prompt": "hello", "max_completion_tokens": 5}, False, 16),
    ],
)
def test_the_longest_answer(body: dict[str, Any], chat: bool, max_tokens: int) -> None:
    assert read_body(orjson.dumps(body), chat=chat, max_model_len=100).max_tokens == max_tokens


@pytest.mark.parametrize(
    ("prompt", "prompts", "prompt_tokens"),
    [
        ("hello world", ("hello world",), 2),
        (["hello world", "you"], ("hello world", "you"), 3),
        ([5, 6, 7], ("[5,6,7]",), 3),
        ([[5, 6], [7]], ("[5,6]", "[7]"), 3),
    ],
)
def test_the_prompts_of_a_completion(prompt: Any, prompts: tuple[str, ...], prompt_tokens: int) -> None:
    asked: ParsedRequest = read_body(orjson.dumps({"model": "m", "prompt": prompt}), chat=False)
    assert (asked.prompts, asked.prompt_tokens) == (prompts, prompt_tokens)
