"""The fields of a body that clients may send, and how much of a body becomes prompt.

Allowed are those of OpenAI's and Anthropic's APIs, and those of vLLM 0.32 and SGLang that concern the request
alone; `relay.fields` allows more. Not allowed are fields that choose an engine's id for a request, its place
in the queue, another request's state, a template or code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson

from forebay.gateway.refusal import Refusal

MEDIA_TOKENS = 1000
"""Estimate for an image, a recording or a film: its bytes show nothing about its tokens."""
PROMPT_FIELDS = frozenset(
    [
        "chat_template_kwargs",
        "chunking_strategy",
        "data",
        "data_1",
        "data_2",
        "documents",
        "ebnf",
        "function_call",
        "functions",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "hotwords",
        "images",
        "input",
        "inputs",
        "instruction",
        "instructions",
        "items",
        "json_schema",
        "known_speaker_names[]",
        "known_speaker_references[]",
        "language",
        "messages",
        "output_config",
        "output_format",
        "prediction",
        "previous_input_messages",
        "previous_response",
        "prompt",
        "prompt_embeds",
        "queries",
        "query",
        "reasoning",
        "ref_text",
        "regex",
        "response_format",
        "structural_tag",
        "structured_outputs",
        "suffix",
        "system",
        "text",
        "text_1",
        "text_2",
        "texts",
        "thinking",
        "to_language",
        "tokens",
        "tool_choice",
        "tools",
    ]
)
OTHER_FIELDS = frozenset(
    [
        "add_generation_prompt",
        "add_special_tokens",
        "allowed_token_ids",
        "audio",
        "background",
        "bad_words",
        "best_of",
        "cache_control",
        "cache_salt",
        "context_management",
        "continue_final_message",
        "dimensions",
        "echo",
        "enable_response_messages",
        "embed_dtype",
        "embedding_types",
        "encoding_format",
        "endianness",
        "file",
        "frequency_penalty",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "ignore_eos",
        "include",
        "include[]",
        "include_reasoning",
        "include_stop_str_in_output",
        "input_type",
        "length_penalty",
        "logit_bias",
        "logprob_token_ids",
        "logprobs",
        "max_chunks_per_doc",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "max_tokens_per_doc",
        "max_tokens_per_query",
        "max_tool_calls",
        "media_io_kwargs",
        "metadata",
        "min_p",
        "min_tokens",
        "mm_processor_kwargs",
        "modalities",
        "model",
        "n",
        "no_stop_trim",
        "output_dimension",
        "padding",
        "parallel_tool_calls",
        "presence_penalty",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_logprob_token_ids",
        "prompt_logprobs",
        "reasoning_effort",
        "rank_fields",
        "ref_audio",
        "repetition_detection",
        "repetition_penalty",
        "return_documents",
        "return_prompt_text",
        "return_token_ids",
        "return_token_offsets",
        "return_token_strs",
        "return_tokens_as_token_ids",
        "safety_identifier",
        "seed",
        "separate_reasoning",
        "service_tier",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "speed",
        "stop",
        "stop_sequences",
        "stop_token_ids",
        "store",
        "stream",
        "stream_continuous_usage_stats",
        "stream_format",
        "stream_include_usage",
        "stream_interval",
        "stream_options",
        "stream_reasoning",
        "task",
        "task_type",
        "temperature",
        "thinking_token_budget",
        "timestamp_granularities",
        "timestamp_granularities[]",
        "top_k",
        "top_logprobs",
        "top_n",
        "top_p",
        "truncate",
        "truncate_prompt_tokens",
        "truncation",
        "truncation_side",
        "use_activation",
        "use_beam_search",
        "user",
        "verbosity",
        "voice",
        "watermarking",
        "web_search_options",
    ]
)
MEDIA = frozenset(
    (
        "audio_embeds",
        "audio_url",
        "file",
        "file_data",
        "image_embeds",
        "image_url",
        "input_audio",
        "source",
        "video_url",
    )
)


def check_fields(document: Mapping[str, Any], allowed: Collection[str] = ()) -> None:
    """Raise `Refusal` (400) for a field that is neither known nor `allowed`."""
    for name, value in document.items():
        if name in PROMPT_FIELDS or name in OTHER_FIELDS or name in allowed or value is None:
            continue
        message = (
            f"{name[:200]}: expected a field that the gateway passes on, found another one; leave it out, or "
            "have the gateway's operator list it in relay.fields"
        )
        raise Refusal(400, "unsupported_field", message, param=name[:200])


def without_nulls(document: Mapping[str, Any], allowed: Collection[str] = ()) -> dict[str, Any]:
    return {
        name: value
        for name, value in document.items()
        if value is not None or name in PROMPT_FIELDS or name in OTHER_FIELDS or name in allowed
    }


def prompt_bytes(document: Mapping[str, Any], written: int) -> tuple[int, int]:
    count = written
    for name, value in document.items():
        if name in OTHER_FIELDS or name == "prompt_embeds":
            count -= len(name) + 4 + len(orjson.dumps(value))
    media = count_of(document.get("prompt_embeds"))
    for part in _media_in([document.get(name) for name in ("messages", "input", "system")]):
        count -= len(orjson.dumps(part))
        media += 1
    return max(0, count), media


def count_of(prompts: object) -> int:
    return len(prompts) if isinstance(prompts, list) else 1 if prompts else 0


def _media_in(value: object) -> Iterator[object]:
    if isinstance(value, list):
        for item in value:
            yield from _media_in(item)
    elif isinstance(value, dict):
        for name, member in value.items():
            if name in ("content", "output"):
                yield from _media_in(member)
            elif name in MEDIA and not (name == "source" and _is_text(member)):
                yield member


def _is_text(source: object) -> bool:
    return not isinstance(source, dict) or source.get("type") not in ("base64", "url")
