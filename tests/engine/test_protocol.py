import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.failures import Quoter
from forebay.engine.protocol import AnswerReader, request_body
from forebay.errors import BadRequest, EngineError, Overloaded, ProtocolViolation, ServerFault
from forebay.records import Message, Request, Sampling, Usage

CHAT = Request("r1", "m", messages=(Message("system", "be brief"), Message("user", "hi")))
PLAIN = Request("r1", "m", prompt="hi")


def reader(request: Request = CHAT) -> AnswerReader:
    return AnswerReader(request, replica="http://r", quote=Quoter())


def body(request: Request, *, stream: bool = True) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(request_body(request, stream=stream))
    return parsed


def test_a_chat_as_a_body() -> None:
    assert body(CHAT) == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "max_tokens": 128,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_prompt_with_all_sampling_fields_as_a_body() -> None:
    sampling = Sampling(9, 0.5, 0.9, 3, ("\n",), {"ignore_eos": True, "priority": MappingProxyType({"a": 1})})
    request = Request("r1", "m", prompt="hi", sampling=sampling)
    assert body(request, stream=False) == {
        "model": "m",
        "prompt": "hi",
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["\n"],
        "ignore_eos": True,
        "priority": {"a": 1},
        "stream": False,
    }


def test_a_schema_becomes_the_response_format() -> None:
    schema = MappingProxyType({"type": "object"})
    format = body(Request("r1", "m", prompt="hi", schema=schema))["response_format"]
    assert format == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
    }


def test_extra_cannot_switch_the_stream_off() -> None:
    assert body(Request("r", "m", prompt="hi", sampling=Sampling(extra={"stream": False})))["stream"] is True


@pytest.mark.parametrize(
    "request_",
    [
        Request("r", "m"),
        Request("r", "m", messages=CHAT.messages, prompt="hi"),
        Request("r", "m", prompt="\ud800"),
        Request("r", "m", prompt="hi", sampling=Sampling(extra={"x": object()})),
        Request("r", "m", prompt="hi", sampling=Sampling(extra={"x": 1 << 70})),
    ],
)
def test_a_request_that_cannot_be_sent_is_a_bad_request(request_: Request) -> None:
    with pytest.raises(BadRequest):
        request_body(request_, stream=True)


def chunk(content: object, reason: object = None, **more: object) -> bytes:
    return json.dumps(
        {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": reason}]} | more
    ).encode()


def test_a_streamed_chat() -> None:
    answer = reader()
    brought = [
        answer.take_chunk(data)
        for data in (
            chunk(""),
            chunk("Hel"),
            chunk(None),
            chunk("lo", usage=None),
            chunk("", "stop"),
            b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,'
            b' "prompt_tokens_details": {"cached_tokens": 1}}}',
        )
    ]
    assert brought == [False, True, False, True, False, False]
    assert (answer.text, answer.finish_reason, answer.usage) == ("Hello", "stop", Usage(3, 2, 1))


def test_a_streamed_completion() -> None:
    answer = reader(PLAIN)
    assert answer.take_chunk(b'{"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}')
    assert (answer.text, answer.finish_reason) == ("a", "length")


def test_a_whole_chat() -> None:
    answer = reader()
    answer.take_whole(
        b'{"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}],'
        b' "usage": {"prompt_tokens": 1, "completion_tokens": null, "prompt_tokens_details": null}}'
    )
    assert (answer.text, answer.usage) == ("a", Usage(1, 0, 0))


def test_only_the_first_choice_counts() -> None:
    answer = reader()
    assert not answer.take_chunk(b'{"choices": [{"index": 1, "delta": {"content": "b"}}]}')
    assert answer.text == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'"\xff"',
        b"{}",
        b'{"choices": {}}',
        b'{"choices": [1]}',
        b'{"choices": [{"index": 0}]}',
        b'{"choices": [{"index": 0, "delta": {"content": 1}}]}',
        b'{"choices": [{"index": 0, "delta": {}, "finish_reason": 1}]}',
        b'{"choices": [], "usage": 1}',
        b'{"choices": [], "usage": {"prompt_tokens": -1}}',
        b'{"choices": [], "usage": {"prompt_tokens": true}}',
        b'{"choices": [], "usage": {"prompt_tokens": "1"}}',
    ],
)
def test_wrong_shapes_are_protocol_violations(data: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="http://r"):
        reader().take_chunk(data)


def test_a_whole_answer_without_a_choice_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="no choice"):
        reader().take_whole(b'{"choices": []}')


@pytest.mark.parametrize(
    ("data", "cls"),
    [
        (b'{"error": {"message": "full", "code": 503}}', Overloaded),
        (b'{"error": "broken"}', ServerFault),
        (b'{"object": "error", "message": "full", "code": 503}', Overloaded),
    ],
)
def test_an_error_object_is_raised_as_its_cause(data: bytes, cls: type[EngineError]) -> None:
    with pytest.raises(cls):
        reader().take_chunk(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "usage", "error", "delta", "message", "content", "index", "text", "code"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values, st.booleans())
def test_any_json_is_read_or_refused(value: object, chat: bool) -> None:
    answer = reader(CHAT if chat else PLAIN)
    try:
        answer.take_chunk(json.dumps(value).encode())
    except EngineError as error:
        message = str(error)
    else:
        message = ""
    assert len(message) < 600
    assert isinstance(answer.text, str)
