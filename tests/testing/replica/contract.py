"""What vLLM and the scripted replica must both answer. To record it again, from a running vLLM:
python -m tests.testing.replica.contract http://127.0.0.1:8100 which needs
`--enable-auto-tool-choice --tool-call-parser hermes` and the packaged model."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from itertools import groupby
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("contract.json")
CHAT, PROMPT = "chat/completions", "completions"
SAMPLED: dict[str, Any] = {"max_tokens": 4, "temperature": 1.0, "seed": 1, "ignore_eos": True}
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}], **SAMPLED}
TEXT: dict[str, Any] = {"prompt": "Say hello.", **SAMPLED}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
EACH = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
STOP: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0}
GREEDY: dict[str, Any] = {"temperature": 0.0}
"""The sampled token is the likeliest, so that it is among the listed ones."""
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
CALL: dict[str, Any] = {"tools": TOOLS, "max_tokens": 80, "temperature": 0.0, "ignore_eos": False}
NAMED = {"type": "function", "function": {"name": "weather"}}
CALLED = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]
PARTS = [{"type": "text", "text": "Say"}, {"type": "text", "text": "hello."}]
PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]


def said(content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, TALK),
    "chat, streamed": (CHAT, TALK | STREAM),
    "chat, streamed without usage": (CHAT, TALK | {"stream": True}),
    "chat, usage of each event": (CHAT, TALK | EACH),
    "a conversation with a tool": (CHAT, TALK | {"messages": CALLED}),
    "content parts": (CHAT, TALK | said(PARTS)),
    "content parts, streamed": (CHAT, TALK | said(PARTS) | STREAM),
    "a part without text": (CHAT, TALK | said([{"type": "text"}])),
    "a part of no kind": (CHAT, TALK | said([{"type": "bogus", "text": "x"}])),
    "a picture": (CHAT, TALK | said(PICTURE)),
    "no content": (CHAT, TALK | said(None)),
    "no message": (CHAT, TALK | {"messages": []}),
    "two choices": (CHAT, TALK | {"n": 2}),
    "two choices, streamed": (CHAT, TALK | {"n": 2} | STREAM),
    "two choices, greedy": (CHAT, TALK | {"n": 2, "temperature": 0.0}),
    "no choice": (CHAT, TALK | {"n": 0}),
    "a stop sequence": (CHAT, TALK | STOP | {"stop": "e"}),
    "a stop sequence, streamed": (CHAT, TALK | STOP | {"stop": ["\u0001never", "e"]} | STREAM),
    "a stop sequence that is kept": (CHAT, TALK | STOP | {"stop": "e", "include_stop_str_in_output": True}),
    "a stop sequence that never comes": (CHAT, TALK | {"stop": ["\u0001never"]}),
    "stop is not a text": (CHAT, TALK | {"stop": 3}),
    "logprobs": (CHAT, TALK | GREEDY | {"logprobs": True}),
    "top logprobs": (CHAT, TALK | GREEDY | {"logprobs": True, "top_logprobs": 2}),
    "top logprobs, streamed": (CHAT, TALK | GREEDY | {"logprobs": True, "top_logprobs": 2} | STREAM),
    "top logprobs alone": (CHAT, TALK | {"top_logprobs": 2}),
    "too many logprobs": (CHAT, TALK | {"logprobs": True, "top_logprobs": 99}),
    "tools that are not chosen": (CHAT, TALK | {"tools": TOOLS, "tool_choice": "none"}),
    "a required tool": (CHAT, TALK | CALL | {"tool_choice": "required"}),
    "a required tool, streamed": (CHAT, TALK | CALL | {"tool_choice": "required"} | STREAM),
    "a named tool": (CHAT, TALK | CALL | {"tool_choice": NAMED}),
    "a named tool, streamed": (CHAT, TALK | CALL | {"tool_choice": NAMED} | STREAM),
    "a choice without tools": (CHAT, TALK | {"tool_choice": "required"}),
    "an unknown tool": (CHAT, TALK | CALL | {"tool_choice": {**NAMED, "function": {"name": "other"}}}),
    "an unknown choice": (CHAT, TALK | CALL | {"tool_choice": "any"}),
    "no tools": (CHAT, TALK | {"tools": []}),
    "two limits": (CHAT, TALK | {"max_completion_tokens": 3}),
    "no tokens": (CHAT, TALK | {"max_tokens": 0}),
    "more at least than at most": (CHAT, TALK | {"min_tokens": 9}),
    "options without a stream": (CHAT, TALK | {"stream_options": {"include_usage": True}}),
    "prompt": (PROMPT, TEXT),
    "prompt, streamed": (PROMPT, TEXT | STREAM),
    "prompt, usage of each event": (PROMPT, TEXT | EACH),
    "no limit": (PROMPT, {name: value for name, value in TEXT.items() if name != "max_tokens"}),
    "several prompts": (PROMPT, TEXT | {"prompt": ["a", "b"]}),
    "several prompts, two choices": (PROMPT, TEXT | {"prompt": ["a", "b"], "n": 2}),
    "several prompts, two choices, streamed": (PROMPT, TEXT | {"prompt": ["a", "b"], "n": 2} | STREAM),
    "token ids": (PROMPT, TEXT | {"prompt": [5, 6, 7]}),
    "lists of token ids": (PROMPT, TEXT | {"prompt": [[5, 6], [7]]}),
    "no prompts": (PROMPT, TEXT | {"prompt": []}),
    "an empty prompt": (PROMPT, TEXT | {"prompt": ""}),
    "prompt, logprobs": (PROMPT, TEXT | GREEDY | {"logprobs": 2}),
    "prompt, no further logprobs": (PROMPT, TEXT | GREEDY | {"logprobs": 0}),
    "prompt, logprobs, streamed": (PROMPT, TEXT | GREEDY | {"logprobs": 2} | STREAM),
}
UNSEEN = ("id", "created", "model", "system_fingerprint", "prompt_tokens_details", "param")
"""Keys whose presence may differ, in addition to those without a value."""
AS_IS = ("object", "index", "role", "finish_reason", "stop_reason", "code", "name", "completion_tokens")


def ask(url: str, model: str, name: str) -> Any:
    """Status and shape of a server's answer to a case."""
    path, body = CASES[name]
    request = urllib.request.Request(
        f"{url}/v1/{path}",
        json.dumps({"model": model, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        refused = json.loads(error.read())["error"]
        return {"status": error.code, "code": refused["code"], "message": bool(refused["message"])}
    if not body.get("stream"):
        document = json.loads(text)
        return {"status": 200, **shape(document, exact=_is_exact(document["choices"]))}
    return {"status": 200, **_stream(text)}


def _stream(text: str) -> dict[str, Any]:
    *events, done, rest = text.split("\n\n")
    documents = [json.loads(event.removeprefix("data: ")) for event in events]
    exact = _is_exact([one for document in documents for one in document["choices"] if one["finish_reason"]])
    own: dict[str, list[Any]] = {}
    for document in documents:
        for choice in document["choices"]:
            alone = shape({**document, "choices": [choice]}, exact=False)
            own.setdefault(str(choice["index"]), []).append(alone)
    besides = [shape(document, exact=exact) for document in documents if not document["choices"]]
    choices = {index: [one for one, _ in groupby(shapes)] for index, shapes in own.items()}
    return {"choices": choices, "besides": besides, "end": done + rest}


def _is_exact(choices: list[Any]) -> bool:
    return all(choice["finish_reason"] == "length" for choice in choices)


def shape(value: Any, *, exact: bool, name: str = "") -> Any:
    """Types of the values, without keys that have none; without equal neighbours in a list."""
    if isinstance(value, dict):
        if name == "top_logprobs" and "token" not in value:  # Its keys are tokens.
            return len(value)
        kept = {key: one for key, one in value.items() if key not in UNSEEN and one not in (None, [])}
        return {key: shape(one, exact=exact, name=key) for key, one in kept.items()}
    if isinstance(value, list):
        shapes = [shape(one, exact=exact, name=name) for one in value]
        return [one for one, _ in groupby(shapes)]
    if name in AS_IS and (exact or name != "completion_tokens"):
        return value
    return "number" if isinstance(value, int | float) else type(value).__name__


if __name__ == "__main__":
    found = {name: ask(sys.argv[1], "smollm2-135m-instruct", name) for name in CASES}
    RECORDED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
