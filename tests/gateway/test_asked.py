"""The parts of a body that the gateway reads."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.asked import MAX_ANSWERS, Asked, read_asked
from forebay.gateway.body import MAX_CONTAINERS
from forebay.gateway.fields import MEDIA_TOKENS
from forebay.gateway.refusal import Refusal

CHAT, PROMPT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
keys = st.sampled_from(["model", "messages", "prompt", "input", "stream", "max_tokens", "user"])
bodies = st.dictionaries(keys, anything | st.just("fake"), max_size=8).map(orjson.dumps)


@given(body=bodies | st.binary(max_size=200), path=st.sampled_from([CHAT, PROMPT, EMBED]))
def test_any_body_is_parsed_or_rejected_with_400(body: bytes, path: str) -> None:
    refusal: Refusal | None = None
    try:
        asked = read_asked(path, body, max_depth=64)
    except Refusal as error:
        refusal = error
    if refusal is None:
        assert orjson.loads(asked.body) == orjson.loads(body)
        assert asked.model
    else:
        assert refusal.status == 400
        assert orjson.loads(refusal.body())["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, PROMPT, EMBED])
@pytest.mark.parametrize(
    ("more", "param"),
    [
        (
            {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "a"}},
            "kv_transfer_params",
        ),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"ec_transfer_params": {"hash": {"peer_host": "a", "peer_port": 1}}}, "ec_transfer_params"),
        ({"bootstrap_host": "a"}, "bootstrap_host"),
        ({"bootstrap_host": None, "bootstrap_port": 8998}, "bootstrap_port"),
        ({"bootstrap_room": 0}, "bootstrap_room"),
        ({"disaggregated_params": {"request_type": "generation_only"}}, "disaggregated_params"),
        ({"vllm_xargs": {"ec_transfer_params": "x"}}, "vllm_xargs.ec_transfer_params"),
        ({"vllm_xargs": {"a": 1, "kv_transfer_params": ["x"]}}, "vllm_xargs.kv_transfer_params"),
    ],
)
def test_client_cannot_choose_the_kv_cache_to_take_over(path: str, more: dict[str, Any], param: str) -> None:
    document = {"model": "m", "messages": [{"role": "user", "content": "a"}], "prompt": "a", "input": "a"}
    with pytest.raises(Refusal, match="clients must not choose which KV caches are handed over") as refused:
        read_asked(path, orjson.dumps({**document, **more}), max_depth=64)
    assert (refused.value.status, orjson.loads(refused.value.body())["error"]["param"]) == (400, param)
    body = orjson.dumps({**document, "vllm_xargs": {"a": 1}})
    assert read_asked(path, body, max_depth=64, fields=("vllm_xargs",)).model == "m"


@pytest.mark.parametrize(
    ("path", "more", "transferable"),
    [
        (CHAT, {}, True),
        (CHAT, {"n": 1, "logprobs": True, "top_logprobs": 3, "echo": False, "prompt_logprobs": None}, True),
        (CHAT, {"n": 2}, False),
        (CHAT, {"prompt_logprobs": 0}, False),
        (CHAT, {"use_beam_search": True}, False),
        (PROMPT, {"prompt": "a", "logprobs": 3}, True),
        (PROMPT, {"prompt": [1, 2, 3]}, True),
        (PROMPT, {"prompt": ["a"]}, True),
        (PROMPT, {"prompt": [[1], [2]]}, False),
        (PROMPT, {"prompt": "a", "best_of": 3}, False),
        (PROMPT, {"prompt": "a", "echo": True}, False),
        (PROMPT, {"prompt": "a", "prompt_embeds": "AAAA"}, False),
        (EMBED, {"input": "a"}, False),
    ],
)
def test_requests_that_may_take_over_a_kv_cache(path: str, more: dict[str, Any], transferable: bool) -> None:
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], **more})
    assert read_asked(path, body, max_depth=64).transferable == transferable


@pytest.mark.parametrize(
    ("path", "more", "text", "tokens"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "a"}, {"role": "x"}]}, "\0user\0a\0x\0", 0),
        (
            CHAT,
            {"messages": [{"role": "u", "content": [{"text": "a"}, {"x": 1}, {"text": "b"}]}]},
            "\0u\0ab",
            0,
        ),
        (PROMPT, {"prompt": "a"}, "a", 0),
        (PROMPT, {"prompt": ["a", "b"]}, "a\0b", 0),
        (PROMPT, {"prompt": [1, 2, 3]}, "", 3),
        (EMBED, {"input": [[1, 2], [3]]}, "", 3),
    ],
)
def test_prompt_of_each_request_form(path: str, more: dict[str, Any], text: str, tokens: int) -> None:
    asked = read_asked(path, orjson.dumps({"model": "m", **more}), max_depth=64)
    assert (asked.text, asked.given_tokens) == (text, tokens)


def test_routing_request_of_each_form() -> None:
    body = {"model": "m", "prompt": "a", "max_tokens": 7, "user": "u", "stream": True}
    asked = read_asked(PROMPT, orjson.dumps(body), max_depth=64)
    assert (asked.max_tokens, asked.session, asked.stream) == (7, "u", True)
    odd = body | {"max_tokens": None, "user": 3, "stream": None}
    asked = read_asked(PROMPT, orjson.dumps(odd), max_depth=64)
    assert (asked.max_tokens, asked.session, asked.stream) == (None, None, False)


@pytest.mark.parametrize(
    ("path", "more", "most"),
    [
        (CHAT, {"max_completion_tokens": None, "max_tokens": 9}, 9),
        (CHAT, {"max_completion_tokens": 7, "max_tokens": 9, "n": 2}, 18),
        (PROMPT, {"max_completion_tokens": 1, "max_tokens": 9}, 9),
        (PROMPT, {"max_tokens": "9"}, 9),
        (PROMPT, {"max_tokens": 9.0}, 9),
        (PROMPT, {"max_tokens": 1 << 53, "n": 1 << 53}, 100 * MAX_ANSWERS),
        (PROMPT, {"max_tokens": 101, "best_of": 2}, 200),
        (PROMPT, {}, 100),
        (EMBED, {"input": "a", "max_tokens": 9}, 0),
        (PROMPT, {"prompt": ["a", "b"], "max_tokens": 9, "n": 2}, 36),
        (PROMPT, {"prompt": [1, 2, 3], "max_tokens": 9}, 9),
    ],
)
def test_requested_tokens_count_up_to_the_context_length(path: str, more: dict[str, Any], most: int) -> None:
    body = {"model": "m", "prompt": "a", "messages": [{"role": "user", "content": "a"}], **more}
    asked = read_asked(path, orjson.dumps(body), max_depth=64)
    assert asked.tokens(100) - asked.prompt_tokens == most


def test_texts_in_a_list_count_as_content() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": ["one", {"type": "text", "text": "two"}]}]}
    assert "onetwo" in read_asked(CHAT, orjson.dumps(body), max_depth=64).text


@pytest.mark.parametrize("name", ["n", "best_of", "max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(
    ("written", "read"), [("5", 5), ("5e0", 5), ("50.0E-1", 5), ('"5"', 5), ("null", None), ("0", 0)]
)
def test_metered_number_is_what_the_engine_reads(name: str, written: str, read: int | None) -> None:
    body = f'{{"model": "m", "messages": [{{"role": "u"}}], "{name}": 7, "{name}": {written}}}'
    asked = read_asked(CHAT, body.encode(), max_depth=64)
    assert asked.body.count(f'"{name}"'.encode()) == 1
    assert orjson.loads(asked.body)[name] == read
    if name.startswith("max"):
        assert asked.max_tokens == (read if read and read > 0 else None)
    else:
        assert asked.answers == max(1, read or 0)


@pytest.mark.parametrize("name", ["n", "best_of", "max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(
    "written", ['"0005"', '"' + "0" * 50 + '5"', '" 5"', "true", "1.5", '"5.0"', "1e300", "[5]"]
)
def test_ambiguous_number_is_rejected(name: str, written: str) -> None:
    body = f'{{"model": "m", "messages": [{{"role": "u"}}], "{name}": {written}}}'
    with pytest.raises(Refusal, match="expected a whole number") as refused:
        read_asked(CHAT, body.encode(), max_depth=64)
    assert refused.value.status == 400


def test_duplicate_field_reaches_the_engine_once() -> None:
    body = b'{"model": "m", "prompt": "short", "prompt": "' + b"long " * 100 + b'", "prompt\\u0000": null}'
    asked = read_asked(PROMPT, body, max_depth=64)
    assert asked.body.count(b"prompt") == 1
    assert b"long" in asked.body
    assert asked.prompt_tokens >= 125


WORDS = "words " * 4000

BODY = {"model": "m", "messages": [{"role": "u", "content": "a"}]}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "description": WORDS}}]}),
        (CHAT, {"functions": [{"name": "f", "parameters": {"description": WORDS}}]}),
        (CHAT, {"documents": [{"title": "a", "text": WORDS}]}),
        (CHAT, {"chat_template_kwargs": {"system": WORDS}}),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": WORDS}}}),
        (CHAT, {"messages": [{"role": "a", "tool_calls": [{"function": {"arguments": WORDS}}]}]}),
        (CHAT, {"messages": [{"role": "a", "reasoning_content": WORDS}]}),
        (CHAT, {"messages": [{"role": "a", "content": [{"type": "thinking", "thinking": WORDS}]}]}),
        (PROMPT, {"suffix": WORDS}),
        ("/v1/responses", {"input": "a", "tools": [{"type": "function", "description": WORDS}]}),
        ("/v1/responses", {"input": [{"type": "function_call_output", "output": WORDS}]}),
        ("/v1/responses", {"text": {"format": {"schema": {"description": WORDS}}}}),
        ("/v1/messages", {"tools": [{"name": "f", "description": WORDS}]}),
        (
            "/v1/messages",
            {"messages": [{"role": "u", "content": [{"type": "tool_result", "content": WORDS}]}]},
        ),
        (
            "/v1/messages",
            {"messages": [{"role": "u", "content": [{"source": {"type": "text", "data": WORDS}}]}]},
        ),
        ("/v1/rerank", {"query": "a", "documents": [{"text": WORDS}]}),
    ],
)
def test_every_prompt_field_counts(path: str, more: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [{"role": "u", "content": "a"}], "prompt": "a", **more}
    assert read_asked(path, orjson.dumps(body), max_depth=64).prompt_tokens >= len(WORDS) // 4


def test_other_fields_do_not_count() -> None:
    more = {"metadata": {"a": WORDS}, "bad_words": [WORDS], "logit_bias": {WORDS: 1}}
    assert read_asked(CHAT, orjson.dumps(BODY | more), max_depth=64).prompt_tokens < 50
    embedded = read_asked(PROMPT, orjson.dumps(BODY | {"prompt": "", "prompt_embeds": WORDS}), max_depth=64)
    assert MEDIA_TOKENS <= embedded.prompt_tokens < MEDIA_TOKENS + 50


@pytest.mark.parametrize(
    ("more", "answers"),
    [
        ({"prompt": "a", "prompt_embeds": "A"}, 2),
        ({"prompt": "a", "prompt_embeds": ["A"] * 1000}, 1001),
        ({"prompt": "", "prompt_embeds": ["A"] * 1000, "n": 2}, 2000),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1], [2]]}, 2),
    ],
)
def test_embeddings_count_each_prompt(more: dict[str, Any], answers: int) -> None:
    body = {"model": "m", "max_tokens": 7, **more}
    asked = read_asked(PROMPT, orjson.dumps(body), max_depth=64)
    assert asked.answers == answers
    assert asked.tokens(100) >= answers * 7 + MEDIA_TOKENS * len(more.get("prompt_embeds", []))


@pytest.mark.parametrize("path", [CHAT, PROMPT])
def test_usage_is_requested_for_every_stream(path: str) -> None:
    for options, hides in (
        (None, True),
        ({"include_usage": False, "x": 1}, True),
        ({"include_usage": True}, False),
    ):
        body = BODY | {"prompt": "a", "stream": True, "stream_options": options}
        asked = read_asked(path, orjson.dumps(body), max_depth=64)
        sent = orjson.loads(asked.body)["stream_options"]
        assert (sent, asked.hides_usage) == ({**(options or {}), "include_usage": True}, hides)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}},
        {"type": "input_audio", "input_audio": {"data": "A" * 1_000_000}},
        {"type": "image", "source": {"type": "base64", "data": "A" * 1_000_000}},
    ],
)
def test_media_are_metered_by_number_not_by_size(part: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [{"role": "u", "content": [part, part]}]}
    assert 2000 <= read_asked(CHAT, orjson.dumps(body), max_depth=64).prompt_tokens < 2100


@pytest.mark.parametrize(
    "name",
    [
        *("request_id", "priority", "session_id", "rid", "data_parallel_rank", "session_params", "nvext"),
        *("chat_template", "vllm_xargs", "custom_logit_processor", "lora_path"),
        *("unheard_of", "N", "max_tokens ", "\u0000"),
    ],
)
def test_steering_or_unknown_fields_are_rejected(name: str) -> None:
    document = {"model": "m", "prompt": "a", name: 1}
    with pytest.raises(Refusal, match="expected a field that the gateway passes on") as refused:
        read_asked(PROMPT, orjson.dumps(document), max_depth=64)
    assert (refused.value.status, refused.value.code) == (400, "unsupported_field")
    asked = read_asked(PROMPT, orjson.dumps(document | {name: None}), max_depth=64)
    assert name not in orjson.loads(asked.body)
    assert (
        orjson.loads(read_asked(PROMPT, orjson.dumps(document), max_depth=64, fields=(name,)).body)
        == document
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_client_salt_splits_the_keys_cache(path: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}
    field = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/responses": "input"}[path]

    def asked(own: object, salt: str | None) -> Asked:
        given = {"model": "m", field: body[field]} | ({} if own is None else {"cache_salt": own})
        return read_asked(path, orjson.dumps(given), max_depth=100, salt=salt)

    found = [asked(own, salt) for salt in ("one", "two") for own in (None, "mine", "one", "two")]
    salts = [orjson.loads(each.body)["cache_salt"] for each in found]
    assert len(set(salts)) == len(salts) == len({each.text for each in found})
    assert salts[0] == "one"
    assert "cache_salt" not in orjson.loads(asked(None, None).body)
    with pytest.raises(Refusal, match="expected a text"):
        asked(7, "one")


@pytest.mark.parametrize("name", ["n", "best_of", "max_tokens"])
@pytest.mark.parametrize("value", [-1, -1.0, "-1"])
def test_negative_counts_are_rejected(name: str, value: object) -> None:
    """They would give a key tokens."""
    body = {"model": "m", "prompt": "x", name: value}
    with pytest.raises(Refusal, match=f"{name}.*expected a whole number"):
        read_asked("/v1/completions", orjson.dumps(body), max_depth=100)


def test_unlimited_answers_are_metered_as_a_number() -> None:
    body = {"model": "m", "prompt": ["x"] * 5000, "n": 2**53}
    assert read_asked("/v1/completions", orjson.dumps(body), max_depth=100).answers == MAX_ANSWERS


def test_file_as_arguments_is_not_read() -> None:
    part = b'--b\r\ncontent-disposition: form-data; name="vllm_xargs"; filename="x"\r\n\r\n{}\r\n'
    body = part + b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    kind = b"multipart/form-data; boundary=b"
    allowed = ("vllm_xargs",)
    asked = read_asked("/v1/audio/transcriptions", body, max_depth=9, content_type=kind, fields=allowed)
    assert asked.model == "m"


def test_brackets_inside_strings_are_not_counted() -> None:
    body = {"model": "m", "prompt": '[{"' * MAX_CONTAINERS}
    assert read_asked("/v1/completions", orjson.dumps(body), max_depth=100).model == "m"
    nested = orjson.dumps({"model": "m", "prompt": [[]] * (MAX_CONTAINERS + 1)})
    with pytest.raises(Refusal, match="lists and objects"):
        read_asked("/v1/completions", nested, max_depth=100)


@pytest.mark.parametrize("part", ["image_url", "file_data"])
def test_media_in_tool_output_are_not_text(part: str) -> None:
    output = {"type": "function_call_output", "output": [{"type": "input_image", part: "x" * 1_000_000}]}
    asked = read_asked("/v1/responses", orjson.dumps({"model": "m", "input": [output]}), max_depth=100)
    assert asked.media == 1
    assert asked.prompt_tokens < 2000
