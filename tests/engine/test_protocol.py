import itertools
import json
from types import MappingProxyType
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.failures import Redactor
from forebay.engine.protocol import BOM, NO_USAGE, AnswerReader, SseParser, request_body
from forebay.errors import BadRequest, EngineError, Overloaded, ProtocolViolation, ServerFault
from forebay.records import Message, Request, Sampling, Usage

CHAT = Request("r1", "m", messages=(Message("system", "be brief"), Message("user", "hi")))
PLAIN = Request("r1", "m", prompt="hi")


def reader(request: Request = CHAT) -> AnswerReader:
    return AnswerReader(request, replica="http://r", quote=Redactor())


def body(request: Request, *, stream: bool = True) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(request_body(request, stream=stream))
    return parsed


def test_body_of_a_chat() -> None:
    assert body(CHAT) == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "max_tokens": 128,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_body_of_a_prompt_with_all_sampling_fields() -> None:
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


def test_character_in_two_pieces_is_whole() -> None:
    whole = reader()
    for half in (r"so \ud83d", r"\uDE00 good", r" and \ud83d", r"!"):
        whole.take_chunk(b'{"choices": [{"index": 0, "delta": {"content": "%b"}}]}' % half.encode())
    assert whole.text == "so 😀 good and \ufffd!"


def test_half_characters_of_other_fields_become_whole() -> None:
    whole = reader()
    call = r'{"tool_calls": [{"function": {"name": "f\ud83d"}}]}'
    whole.take_chunk(b'{"choices": [{"delta": %b, "finish_reason": "\\ud83d"}]}' % call.encode())
    assert (whole.finish_reason, whole.tool) == ("\ufffd", "f\ufffd")
    with pytest.raises(EngineError) as caught:
        reader().take_chunk(b'{"error": {"message": "no \\ud83d", "code": "\\ud83d"}}')
    assert str(caught.value).encode()


def test_deep_document_with_a_half_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation):
        reader().take_chunk(b'"\\ud83d"' + b"[" * 200_000)
    with pytest.raises(ProtocolViolation):
        reader().take_chunk(b"[" * 200_000 + b'"\\ud83d"')


def test_tokens_of_a_piece_are_vllms_stream_interval() -> None:
    assert json.loads(request_body(CHAT, stream=True, piece_tokens=8))["stream_interval"] == 8
    for stream, tokens in ((True, 1), (False, 8)):
        assert "stream_interval" not in json.loads(request_body(CHAT, stream=stream, piece_tokens=tokens))
    given = Request("r1", "m", prompt="hi", sampling=Sampling(9, extra={"stream_interval": 1}))
    assert json.loads(request_body(given, stream=True, piece_tokens=8))["stream_interval"] == 1


def test_schema_becomes_the_response_format() -> None:
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
def test_unsendable_request_is_a_bad_request(request_: Request) -> None:
    with pytest.raises(BadRequest):
        request_body(request_, stream=True)


def chunk(content: object, reason: object = None, **more: object) -> bytes:
    return json.dumps(
        {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": reason}]} | more
    ).encode()


def test_streamed_chat() -> None:
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


def test_streamed_completion() -> None:
    answer = reader(PLAIN)
    assert answer.take_chunk(b'{"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}')
    assert (answer.text, answer.finish_reason) == ("a", "length")


def test_non_streaming_chat() -> None:
    answer = reader()
    answer.take_whole(
        b'{"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}],'
        b' "usage": {"prompt_tokens": 1, "completion_tokens": null, "prompt_tokens_details": null}}'
    )
    assert (answer.text, answer.usage) == ("a", Usage(1, 0, 0))


def test_only_the_first_choice_is_used() -> None:
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
        b'{"choices": [{"index": 0, "delta": 1}]}',
        b'{"choices": [{"index": 0, "delta": {"content": 1}}]}',
        b'{"choices": [{"index": 0, "delta": {}, "finish_reason": 1}]}',
    ],
)
def test_wrong_shapes_are_protocol_violations(data: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="http://r"):
        reader().take_chunk(data)


@pytest.mark.parametrize(
    "usage", [1, None, *({"prompt_tokens": n} for n in (-1, 1 << 63, 1e300, 2.5, True, "1"))]
)
def test_answer_with_unreadable_counts_is_an_answer(usage: object) -> None:
    answer = reader()
    choice = {"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}
    answer.take_whole(BOM + orjson.dumps({"choices": [choice], "usage": usage}))
    assert (answer.text, answer.usage) == ("hi", NO_USAGE)


def test_whole_floats_are_counts() -> None:
    answer = reader()
    answer.take_chunk(b'{"choices": [], "usage": {"prompt_tokens": 3.0, "completion_tokens": 2.0}}')
    assert answer.usage == Usage(3, 2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "did not send a completion: an empty body"),
        (b"\x1f\x8b\x08\x00", "a completion: compressed, without a Content-Encoding"),
        (b'{"choices": "\xc3"}', "a completion: not UTF-8 at byte 13"),
        (b'{"choices": [', r"a completion: not JSON \(.*\) in 13 bytes"),
    ],
)
def test_reason_why_a_body_is_not_json_is_named(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolViolation, match=words):
        reader().take_whole(data)


def test_non_streaming_answer_without_a_choice_is_a_violation() -> None:
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
def test_error_object_is_raised_as_its_cause(data: bytes, cls: type[EngineError]) -> None:
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
def test_any_json_is_parsed_or_rejected(value: object, chat: bool) -> None:
    answer = reader(CHAT if chat else PLAIN)
    try:
        answer.take_chunk(json.dumps(value).encode())
    except EngineError as error:
        message = str(error)
    else:
        message = ""
    assert len(message) < 600
    assert isinstance(answer.text, str)


def parser_of(max_event_bytes: int = 1 << 20) -> SseParser:
    return SseParser(replica="http://r", quote=Redactor("sk-key"), max_event_bytes=max_event_bytes)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


# No line ends in a payload; JSON has none.
payloads = st.lists(
    st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")), max_size=8
)


@given(payloads, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_chunking_and_line_ends_do_not_change_the_events(
    events: list[bytes], places: list[int], end: bytes
) -> None:
    pieces = ((b": ping", b"data: " + event, b"data: 2", b"") for event in events)
    stream = b"".join(line + end for lines in pieces for line in lines)
    parser = parser_of()
    found = [event for chunk in cut(stream, places) for event in parser.feed(chunk)]
    parser.end()
    assert found == [event + b"\n2" for event in events]


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_arbitrary_bytes_give_events_or_a_protocol_violation(chunks: list[bytes]) -> None:
    parser = parser_of(100)
    try:
        for chunk in chunks:
            assert all(len(event) <= 100 for event in parser.feed(chunk))
        parser.end()
    except ProtocolViolation as error:
        message = str(error)
    else:
        message = ""
    assert len(message) < 500


def test_data_lines_of_one_event_are_joined_and_other_fields_skipped() -> None:
    stream = b"\xef\xbb\xbfevent: message\nid: 7\nretry: 10\ndata: a\ndata:b\ndata\n\n"
    assert parser_of().feed(stream) == [b"a\nb\n"]


def test_event_without_its_blank_line_is_not_returned() -> None:
    parser = parser_of()
    assert parser.feed(b"data: a\n") == []
    parser.end()


@pytest.mark.parametrize("garbage", [b"<html>\n", b"\x00\x01\x02\n", b'{"error": 1}\n'])
def test_line_that_is_not_a_field_is_a_violation(garbage: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="not an event stream"):
        parser_of().feed(garbage)


def test_unfinished_garbage_line_is_a_violation_at_the_end() -> None:
    parser = parser_of()
    parser.feed(b"<html>")
    with pytest.raises(ProtocolViolation):
        parser.end()


def test_garbage_is_quoted_without_the_key() -> None:
    with pytest.raises(ProtocolViolation, match=r"http://r.*\[API key\]"):
        parser_of().feed(b"your key is sk-key\n")


@pytest.mark.parametrize("start", [b"", b"da", b"data", b"data: {half", b": comm", b"ev"])
def test_unfinished_field_is_no_violation_at_the_end(start: bytes) -> None:
    parser = parser_of()
    assert parser.feed(start) == []
    parser.end()


@pytest.mark.parametrize("piece", [b"x" * 10, b"data: " + b"x" * 10 + b"\n", b"data:\n"])
def test_event_beyond_the_limit_is_a_violation(piece: bytes) -> None:
    parser = parser_of(1000)
    parser.feed(b"data: ")
    for _ in range(900 // max(len(piece), 6)):
        parser.feed(piece)
    with pytest.raises(ProtocolViolation, match="1000 bytes"):
        parser.feed(piece * 1001)


def test_limit_applies_to_one_event() -> None:
    assert len(parser_of(100).feed(b"data: xxxxxxxx\n\n" * 100)) == 100


@pytest.mark.heavy
def test_byte_by_byte_parsing_takes_linear_time() -> None:
    # A quadratic parser would copy 128 GiB here and never be done within the test's timeout.
    parser = parser_of()
    parser.feed(b"data: ")
    for _ in range(500_000):
        parser.feed(b"x")
    assert len(parser.feed(b"\n\n")[0]) == 500_000


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_has_two_names_and_is_read_once(name: str) -> None:
    answer = reader()
    other = {"reasoning": "reasoning_content", "reasoning_content": "reasoning"}[name]
    for part in ({name: "Let me "}, {name: "think", other: None}, {name: "", "content": "Yes"}):
        choice = {"index": 0, "delta": part, "finish_reason": None}
        answer.take_chunk(json.dumps({"choices": [choice]}).encode())
    assert (answer.reasoning, answer.text) == ("Let me think", "Yes")
    # Some versions of vLLM send both.
    both = reader()
    both.take_chunk(json.dumps({"choices": [{"delta": {name: "Hm", other: "Hm"}}]}).encode())
    assert both.reasoning == "Hm"


@pytest.mark.parametrize(
    ("message", "tool", "refusal"),
    [
        ({"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, "f", None),
        ({"content": None, "function_call": {"name": "g"}}, "g", None),
        ({"content": None, "tool_calls": [{"function": {}}]}, "", None),
        ({"content": None, "refusal": "No."}, None, "No."),
        ({"content": "a", "tool_calls": [], "refusal": None, "function_call": None}, None, None),
        ({"content": "a", "tool_calls": [3], "refusal": 4, "reasoning": 5}, None, None),
        ({"content": "a", "tool_calls": {"a": 1}}, None, None),
    ],
)
def test_messages_without_content(message: Any, tool: Any, refusal: Any) -> None:
    answer = reader()
    answer.take_whole(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode())
    assert (answer.tool, answer.refusal, answer.reasoning) == (tool, refusal, None)


def test_first_choice_is_found_after_another() -> None:
    answer = reader()
    answer.take_whole(
        b'{"choices": [{"index": 1, "message": {"content": "b"}}, {"index": 0, "message": {"content": "a"}}]}'
    )
    assert answer.text == "a"
