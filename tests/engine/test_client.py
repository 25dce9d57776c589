from __future__ import annotations

import asyncio
import math
import socket
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock

from forebay import errors
from forebay.clients.http import connection
from forebay.clients.http.readers import AnswerHead, CallOverdue, SilentServer
from forebay.engine import Deadline, completion_reader
from forebay.engine.client import HttpEngine, header_id, replica_url
from forebay.engine.completion_reader import CompletionReader
from forebay.engine.failures import Redactor
from forebay.records import Completion, Message, Request, Sampling, Usage
from forebay.testing.answers import echo
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import ANSWERS, FAULTS, Fixed

KEY = "sk-very-secret-key"
NOW = ReplicaScript(delay=Fixed(0.0))
SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}, "score": {"type": "integer"}},
    "required": ["mood", "score"],
}


def ask(text: str, id: str = "r1", **fields: object) -> Request:
    return Request(id, "fake", messages=(Message("user", text),), **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def serving(
    script: ReplicaScript = NOW, **settings: object
) -> AsyncIterator[tuple[HttpEngine, FakeReplica]]:
    async with FakeReplica(script) as replica:
        engine = HttpEngine(replica.url, **settings)  # type: ignore[arg-type]
        try:
            yield engine, replica
        finally:
            await engine.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (what is waited for is in another task's plain fields)
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False])
async def test_chat_is_answered(stream: bool) -> None:
    async with serving(stream=stream) as (engine, replica):
        completion = await engine.complete(ask("hello"), timeout_s=30)
    assert completion.text == echo("hello")
    assert completion.finish_reason == "stop"
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (1, 4)
    assert replica.report().calls == {"r1": 1}


@pytest.mark.parametrize("stream", [True, False])
async def test_plain_prompt_is_answered(stream: bool) -> None:
    async with serving(stream=stream) as (engine, _):
        completion = await engine.complete(Request("r1", "fake", prompt="hello"), timeout_s=30)
    assert completion.text == echo("hello")


@pytest.mark.parametrize("chunks", [1, 3, 17])
async def test_every_content_chunk_has_its_time_in_order(chunks: int) -> None:
    script = ReplicaScript(delay=Fixed(0.01), chunks=chunks, token_s=0.005)
    async with serving(script) as (engine, _):
        completion = await engine.complete(ask("hello"), timeout_s=30)
    timing = completion.timing
    assert completion.text == echo("hello")
    assert timing.first_byte_s is not None
    assert len(timing.chunks_s) == len(range(0, 17, -(-17 // chunks)))
    moments = [timing.sent_s, timing.first_byte_s, *timing.chunks_s, timing.done_s]
    assert moments == sorted(moments)
    assert timing.first_token_s == timing.chunks_s[0]


async def test_load_header_is_read() -> None:
    async with serving(stream=False) as (engine, _):
        whole = await engine.complete(ask("hello"), timeout_s=30)
    async with serving(ReplicaScript(delay=Fixed(0.0), load_header_on_streams=True)) as (engine, _):
        streamed = await engine.complete(ask("hello"), timeout_s=30)
    async with serving() as (engine, _):
        silent = await engine.complete(ask("hello"), timeout_s=30)
    for completion in (whole, streamed):
        assert completion.load is not None
        assert completion.load.waiting == 0.0
        assert completion.load.kv_cache_usage is not None
    assert silent.load is None


async def test_connections_are_reused() -> None:
    async with serving() as (engine, _):
        for i in range(20):
            await engine.complete(ask("hello", f"r{i}"), timeout_s=30)
        assert engine._server.connections == 1


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{unused.getsockname()[1]}")
        async with serving() as (engine, _):
            assert (await engine.complete(ask("hello"), timeout_s=30)).text == echo("hello")


@pytest.mark.heavy
async def test_thousand_calls_run_at_once() -> None:
    script = ReplicaScript(delay=Fixed(0.0), slots=1)
    async with serving(script) as (engine, replica):
        # None is answered until all are there.
        assert replica._slots is not None
        async with replica._slots:
            calls = [
                asyncio.ensure_future(engine.complete(ask(str(i), f"r{i}"), timeout_s=400))
                for i in range(1000)
            ]
            await until(lambda: replica.report().in_flight == 1000)
        answers = await asyncio.gather(*calls)
    assert [a.text for a in answers] == [echo(str(i)) for i in range(1000)]


async def test_tokens_beyond_the_limit_are_cut() -> None:
    async with serving() as (engine, _):
        request = ask("hello", sampling=Sampling(max_tokens=2))
        completion = await engine.complete(request, timeout_s=30)
    assert (completion.text, completion.finish_reason) == (echo("hello")[:8], "length")


CAUSES = [
    ("400", errors.BadRequest),
    ("401", errors.Unauthorized),
    ("403", errors.Unauthorized),
    ("404", errors.ModelNotFound),
    ("422", errors.BadRequest),
    ("429", errors.RateLimited),
    ("500", errors.ServerFault),
    ("502", errors.Overloaded),
    ("503", errors.Overloaded),
    ("504", errors.Overloaded),
    ("too_long", errors.PromptTooLong),
    ("hang", errors.AttemptTimeout),
    ("refuse", errors.Unreachable),
    ("cut", errors.Unreachable),
    ("garbage", errors.ProtocolViolation),
    ("binary", errors.ProtocolViolation),
    ("huge", errors.ProtocolViolation),
    ("error", errors.ServerFault),
]


def test_every_fault_of_the_scripted_replica_is_tested() -> None:
    # What `ANSWERS` holds is tested in test_retry.py.
    assert {fault for fault, _ in CAUSES} | ANSWERS == FAULTS


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("fault", "cls"), CAUSES)
async def test_each_fault_raises_its_error(fault: str, cls: type[errors.EngineError], stream: bool) -> None:
    script = ReplicaScript(delay=Fixed(0.0), api_key=KEY)
    async with serving(script, api_key=KEY, stream=stream, max_answer_bytes=100_000) as (engine, replica):
        timeout_s = 0.2 if fault == "hang" else 30
        with pytest.raises(errors.EngineError) as caught:
            await engine.complete(ask(f"((fault:{fault})) {KEY}"), timeout_s=timeout_s)
        assert type(caught.value) is cls
        assert caught.value.retry_after_s == (1.0 if fault == "429" else None)
        assert replica.url in str(caught.value)
        # The engine is as good as before.
        assert (await engine.complete(ask("hello", "r2"), timeout_s=30)).text == echo("hello")
        calls = replica.report().calls
        if fault == "hang":
            # If this process was delayed, its time may be over before it is sent.
            calls.setdefault("r1", 1)
        assert calls == {"r1": 1, "r2": 1}
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(engine)
    assert KEY not in shown
    assert caught.value.__context__ is None or KEY not in repr(caught.value.__context__)


async def test_wrong_key_is_unauthorized_and_not_shown() -> None:
    async with serving(ReplicaScript(api_key="other"), api_key=KEY) as (engine, _):
        with pytest.raises(errors.Unauthorized, match="check the API key") as caught:
            await engine.complete(ask("hello"), timeout_s=30)
    assert KEY not in str(caught.value)


async def test_wrong_model_is_named() -> None:
    async with serving() as (engine, _):
        with pytest.raises(errors.ModelNotFound, match="gpt-9"):
            await engine.complete(Request("r1", "gpt-9", prompt="hello"), timeout_s=30)


async def test_prompt_beyond_the_context_is_an_error() -> None:
    async with serving(ReplicaScript(max_model_len=200)) as (engine, _):
        with pytest.raises(errors.PromptTooLong, match="maximum context length is 200"):
            await engine.complete(ask("x" * 400), timeout_s=30)


async def test_answer_that_breaks_the_schema_is_still_a_completion() -> None:
    async with serving() as (engine, _):
        completion = await engine.complete(ask("((fault:schema))", schema=SCHEMA), timeout_s=30)
    assert completion.text == '{"broken": '


async def test_fault_in_the_first_two_attempts_only() -> None:
    async with serving() as (engine, replica):
        for _ in range(2):
            with pytest.raises(errors.ServerFault):
                await engine.complete(ask("((fault:500x2))"), timeout_s=30)
        await engine.complete(ask("((fault:500x2))"), timeout_s=30)
    assert replica.report().calls == {"r1": 3}


@pytest.mark.parametrize("stream", [True, False])
async def test_cancelling_aborts_the_request_at_the_replica(stream: bool) -> None:
    async with serving(stream=stream) as (engine, replica):
        call = asyncio.ensure_future(engine.complete(ask("((fault:hang))"), timeout_s=60))
        await until(lambda: replica.report().in_flight == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: replica.report().in_flight == 0)
        assert replica.report().aborted == 1


async def test_cancelling_during_the_answer_aborts_the_request() -> None:
    script = ReplicaScript(delay=Fixed(0.0), chunks=17, token_s=60.0)
    async with serving(script) as (engine, replica):
        call = asyncio.ensure_future(engine.complete(ask("hello"), timeout_s=600))
        await until(lambda: replica.report().in_flight == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: replica.report().in_flight == 0)
        assert replica.report().aborted == 1


async def test_timeout_aborts_the_request_at_the_replica() -> None:
    async with serving() as (engine, replica):
        with pytest.raises(errors.AttemptTimeout, match=r"0\.1 s"):
            await engine.complete(ask("((fault:hang))"), timeout_s=0.1)
        await until(lambda: replica.report().in_flight == 0)


async def test_deadline_of_an_answer_that_grows_names_its_setting() -> None:
    script = ReplicaScript(delay=Fixed(0.0), chunks=17, token_s=60.0)
    async with serving(script) as (engine, _):
        began = asyncio.Event()
        deadline = Deadline(600.0)
        call = asyncio.ensure_future(
            engine.complete(ask("hello"), timeout_s=600, deadline=deadline, on_content=lambda _: began.set())
        )
        await began.wait()
        (connection,) = engine._server._open
        connection._until_s = 0.0
        connection._check_time()
        with pytest.raises(
            errors.AttemptTimeout, match="although it sent 1 piece of its answer; raise deadl"
        ):
            await call


async def test_expired_call_is_not_sent() -> None:
    async with serving() as (engine, replica):
        with pytest.raises(errors.AttemptTimeout):
            await engine.complete(ask("hello"), timeout_s=0)
        assert replica.report().calls == {}


async def test_closing_ends_calls_in_flight_and_rejects_new_ones() -> None:
    async with serving() as (engine, replica):
        call = asyncio.ensure_future(engine.complete(ask("((fault:hang))"), timeout_s=60))
        await until(lambda: replica.report().in_flight == 1)
        await engine.close()
        with pytest.raises(errors.Unreachable):
            await call
        with pytest.raises(errors.Unreachable, match="closed"):
            await engine.complete(ask("hello"), timeout_s=30)


async def test_refused_connection_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        engine = HttpEngine(url)
        with pytest.raises(errors.Unreachable) as caught:
            await engine.complete(ask("hello"), timeout_s=30)
        assert str(caught.value) == f"{url}: no connection (Connection refused); is it there?"
        await engine.close()


async def test_restarted_replica_is_used_again() -> None:
    async with serving() as (engine, replica):
        await engine.complete(ask("hello"), timeout_s=30)
        await replica.stop()
        with pytest.raises(errors.Unreachable):
            await engine.complete(ask("hello"), timeout_s=30)
        await replica.start()
        assert (await engine.complete(ask("hello"), timeout_s=30)).text == echo("hello")


# --- answers as bytes -------------------------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
TO_THE_END = OK + b"Connection: close\r\n\r\n"
CONTENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
COUNTS = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
WHOLE = b'data: {"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
TEXT = b'data: {"choices":[{"index":0,"text":"hi","finish_reason":"stop"}]}\n\n'
NOT_ENDED = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":""}]}\n\n'
VERDICT = b'data: {"choices":[{"index":0,"finish_reason":null,"content_filter_results":{}}]}\n\n'


async def answer_of(
    answer: bytes,
    *,
    then: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None,
    **settings: object,
) -> Completion:
    """The client's result for a server that sends these bytes and closes (or does `then`)."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        await reader.readexactly(length)
        writer.write(answer)
        if then is not None:
            await then(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    engine = HttpEngine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", **settings)  # type: ignore[arg-type]
    try:
        return await engine.complete(ask("hello"), timeout_s=30)
    finally:
        await engine.close()
        server.close()
        await server.wait_closed()


REDIRECT = b"HTTP/1.1 302 X\r\nLocation: http://other/\r\nContent-Length: 0\r\n\r\n"
PAGE = b"HTTP/1.1 200 X\r\nContent-Type: text/html\r\n\r\n<html><head><title>Soon</title>"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (TO_THE_END + CONTENT + STOP + DONE, "stop"),
        (TO_THE_END + CONTENT + STOP, "stop"),
        (TO_THE_END + CONTENT + DONE, None),
        (TO_THE_END + b": keep-alive\n\n" + CONTENT + b": x\n\n" + STOP + DONE, "stop"),
        (TO_THE_END + CONTENT + VERDICT + STOP + DONE, "stop"),
        (TO_THE_END + NOT_ENDED + STOP + DONE, "stop"),
        # Cut after the last token.
        (CHUNKED + chunk(CONTENT + STOP), "stop"),
    ],
)
async def test_valid_streams(answer: bytes, reason: str | None) -> None:
    completion = await answer_of(answer)
    assert (completion.text, completion.finish_reason) == ("hi", reason)


def reader_of(clock: ManualClock, **fields: object) -> CompletionReader:
    reader = CompletionReader(
        ask("hello", **fields),
        url="http://engine",
        stream=True,
        max_bytes=1000,
        clock=clock,
        quote=Redactor(),
        piece_tokens=1,
        on_content=lambda _: None,
    )
    reader.ended = asyncio.get_running_loop().create_future()
    reader.head(AnswerHead(200, [(b"Content-Type", b"text/event-stream")]))
    return reader


ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'


@pytest.mark.parametrize(
    ("events", "fits"),
    [
        # Longer as a stream than the limit, not as a text.
        (CONTENT * 50, True),
        (CONTENT * 60, False),
        (CONTENT.replace(b'"content"', b'"reasoning"') * 60, False),
        (CONTENT.replace(b'"content"', b'"refusal"') * 60, False),
        (ROLE * 100, True),
        # Without text, a stream may be as long as its tokens need.
        (ROLE * 200, False),
        (b": keep-alive\n\n" * 1000, False),
    ],
)
async def test_a_long_stream_is_judged_by_its_text(events: bytes, fits: bool) -> None:
    assert len(CONTENT * 50) > 1000
    reader = reader_of(ManualClock(), sampling=Sampling(max_tokens=3))
    if fits:
        reader.body(events + STOP + DONE)
    else:
        with pytest.raises(errors.ProtocolViolation, match="an answer of more than 1000 bytes"):
            reader.body(events)


async def test_a_stream_is_bounded_if_its_tokens_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_reader, "MAX_STREAM_BYTES", 1500)
    reader = reader_of(ManualClock(), sampling=Sampling(max_tokens=1 << 30))
    with pytest.raises(errors.ProtocolViolation):
        reader.body(b": keep-alive\n\n" * 150)


@pytest.mark.parametrize("late", [SilentServer("late"), CallOverdue("late")])
@pytest.mark.parametrize("finished", [True, False])
async def test_a_finished_answer_counts_though_its_stream_stays_open(
    late: errors.AttemptTimeout, finished: bool
) -> None:
    reader = reader_of(ManualClock())
    assert reader.ended is not None
    reader.body(CONTENT + STOP if finished else CONTENT)
    reader.finished(late)
    if finished:
        await reader.ended
        assert reader.completion(0.0).text == "hi"
    else:
        with pytest.raises(type(late)):
            await reader.ended


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (TO_THE_END + CONTENT, errors.Unreachable, "1 piece of content, and neither a finish_reason nor"),
        (CHUNKED + chunk(CONTENT), errors.Unreachable, ""),
        (TO_THE_END + DONE, errors.ProtocolViolation, "without an answer"),
        (TO_THE_END + VERDICT + DONE, errors.ProtocolViolation, "without an answer"),
        (TO_THE_END + WHOLE + DONE, errors.ProtocolViolation, "a choice has no delta"),
        (TO_THE_END + TEXT + DONE, errors.ProtocolViolation, "a choice has no delta"),
        (TO_THE_END + NOT_ENDED, errors.Unreachable, "before it was complete"),
        (
            TO_THE_END.replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1) + CONTENT + STOP + DONE,
            errors.ProtocolViolation,
            "sent a compressed answer",
        ),
        # A finish reason before the end is not one.
        (CHUNKED + chunk(STOP + CONTENT), errors.Unreachable, "in the middle of its answer"),
        (b"HTTP/1.1 503 X\r\nContent-Length: 100\r\n\r\nhalf", errors.Overloaded, ""),
        (b"HTTP/1.1 503 X\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b", errors.Overloaded, "a compressed body"),
        (REDIRECT, errors.ProtocolViolation, "a redirect to http://other/, which is not followed"),
        (
            PAGE,
            errors.ProtocolViolation,
            "no engine answers at .* 200 with a web page, 'Soon'; check the URL",
        ),
    ],
)
async def test_cut_answers(answer: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words or None):
        await answer_of(answer)


async def test_answer_does_not_wait_for_the_end_of_the_connection() -> None:
    async def then(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # Until the client disconnects.

    assert (await answer_of(CHUNKED + b"1000\r\n" + CONTENT + STOP + DONE, then=then)).text == "hi"


async def test_finished_answer_does_not_wait_for_a_stream_of_keep_alives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completion_reader, "CLOSE_GRACE_S", 0.01)

    async def then(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chunk(COUNTS))
        disconnected = asyncio.ensure_future(reader.read())
        while not disconnected.done():
            writer.write(chunk(b": keep-alive\n\n"))
            await asyncio.sleep(0)

    completion = await answer_of(CHUNKED + chunk(CONTENT + STOP), then=then)
    assert (completion.text, completion.finish_reason, completion.usage) == ("hi", "stop", Usage(3, 2))


async def test_time_of_the_answer_is_that_of_its_finish_reason() -> None:
    clock = ManualClock()
    reader = reader_of(clock)
    reader.body(CONTENT)
    clock.advance(1.0)
    finished_s = clock.monotonic_s()
    reader.body(STOP)
    clock.advance(1.0)
    reader.body(COUNTS + DONE)
    assert reader.completion(0.0).timing.done_s == finished_s


async def test_token_counts_after_the_finish_reason_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_reader, "CLOSE_GRACE_S", 0.0)
    reader = reader_of(ManualClock())
    held = connection.Connection(Mock(), "http://engine", Redactor())
    held.connection_made(Mock(spec=asyncio.Transport, is_closing=lambda: False))
    held.send(connection.HttpCall(b""), reader)
    held.data_received(CHUNKED + chunk(CONTENT + STOP))
    for _ in range(5):
        await asyncio.sleep(0)
    held.data_received(chunk(COUNTS))
    assert reader.ended is not None
    await reader.ended
    assert reader.completion(0.0).usage == Usage(3, 2)


async def test_content_after_a_finish_reason_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_reader, "USAGE_GRACE_S", 0.0)
    reader = reader_of(ManualClock())
    held = connection.Connection(Mock(), "http://engine", Redactor())
    held.connection_made(Mock(spec=asyncio.Transport, is_closing=lambda: False))
    held.send(connection.HttpCall(b""), reader)
    for part in (CHUNKED, chunk(CONTENT + STOP), chunk(CONTENT + STOP)):
        held.data_received(part)
    for _ in range(5):
        await asyncio.sleep(0)
    held.data_received(chunk(CONTENT + STOP + DONE))
    assert reader.ended is not None
    await reader.ended
    assert reader.completion(0.0).text == "hihihi"


async def test_connection_left_open_after_done_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_reader, "CLOSE_GRACE_S", 0.01)
    given_up = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n1000\r\n" + CONTENT + STOP + DONE)
        await reader.read()
        writer.close()
        given_up.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    engine = HttpEngine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await engine.complete(ask("hello"), timeout_s=30)
    await given_up.wait()
    await engine.close()
    server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff garbage\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * 20_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-A: a\r\n" * 50_000 + b"\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        TO_THE_END + b"data: {\n\n",
        TO_THE_END + b"<html>\n",
        TO_THE_END + b"<html>",
        TO_THE_END + b'data: {"choices":[{"index":0,"delta":{"content":"\xff"}}]}\n\n',
        TO_THE_END + b"data: " + b"x" * 2_000_000,
        TO_THE_END + CONTENT * 6000 + STOP,
    ],
)
async def test_bytes_that_break_the_protocol(answer: bytes) -> None:
    with pytest.raises(errors.ProtocolViolation) as caught:
        await answer_of(answer, max_answer_bytes=100_000 if len(answer) < 1_000_000 else 8 << 20)
    assert len(str(caught.value)) < 700
    assert str(caught.value).isprintable()


async def test_endless_error_body_is_bounded() -> None:
    async def then(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(b"no" * 10_000)
                await writer.drain()
        except ConnectionError:
            return

    head = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\n"
    with pytest.raises(errors.ServerFault, match="nonono"):
        await answer_of(head, then=then)


async def test_retry_after_date_is_parsed() -> None:
    head = b"HTTP/1.1 429 X\r\nRetry-After: Tue, 14 Nov 2023 22:13:50 GMT\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(errors.RateLimited, match="answered 429 with Retry-After: 30 s") as caught:
        await answer_of(head, clock=ManualClock(wall_ms=1_700_000_000_000))
    assert caught.value.retry_after_s == 30.0


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 401 X\r\nContent-Type: text/plain\r\n\r\nwrong key " + KEY.encode(),
        b"HTTP/1.1 500 X\r\n\r\n" + b"x" * 290 + KEY.encode(),
        b"HTTP/1.1 200 OK\r\nContent-Type: " + KEY.encode() + b"\r\n\r\n" + KEY.encode(),
        TO_THE_END + KEY.encode() + b"\n",
        TO_THE_END + b"data: " + KEY.encode() + b"\n\n",
        TO_THE_END + b'data: {"error": {"message": "' + KEY.encode() + b'"}}\n\n',
        b"HTTP/1.1 " + KEY.encode() + b"\r\n\r\n",
    ],
)
async def test_key_repeated_by_the_server_is_not_shown(answer: bytes) -> None:
    with pytest.raises(errors.EngineError) as caught:
        await answer_of(answer, api_key=KEY)
    assert KEY[:12] not in str(caught.value)


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel"])
def test_key_that_fits_no_header_is_rejected_without_being_shown(key: str) -> None:
    with pytest.raises(errors.SettingError) as caught:
        HttpEngine("http://host:8000", api_key=key)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("http://host:8000", "http://host:8000"),
        (" http://host:8000/ ", "http://host:8000"),
        ("https://host/v1", "https://host"),
        ("http://[::1]:8000/base/v1/", "http://[::1]:8000/base"),
    ],
)
def test_accepted_urls(url: str, clean: str) -> None:
    assert replica_url(url) == clean


@pytest.mark.parametrize(
    "url", ["", "host:8000", "ftp://host", "http://", "http://host:99999", "http://[::1", "http://h:x", "/v1"]
)
def test_rejected_urls(url: str) -> None:
    with pytest.raises(errors.SettingError, match="http://HOST:PORT"):
        replica_url(url)


@pytest.mark.parametrize("url", ["http://user:hidden@host", "http://host/?key=hidden", "http://host/#hidden"])
def test_urls_with_secrets_are_rejected_unquoted(url: str) -> None:
    with pytest.raises(errors.SettingError) as caught:
        replica_url(url)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("id", ["a\r\nX-Evil: 1", "ü" * 300, "\ud800", "x" * 5000])
async def test_any_id_fits_into_a_header(id: str) -> None:
    value = header_id(id)
    assert value.isascii()
    assert value.isprintable()
    assert len(value) <= 200
    async with serving() as (engine, replica):
        await engine.complete(ask("hello", id), timeout_s=30)
        assert list(replica.report().calls) == [value]


@pytest.mark.parametrize(("fault", "calls", "content"), [("reasoning", 1, 0), ("reasons", 2, 1)])
async def test_reasoning_chunks_count_as_progress(fault: str, calls: int, content: int) -> None:
    came: list[int] = []
    async with serving() as (engine, _):
        request = ask(f"hello ((fault:{fault}))")
        completion = await engine.complete(request, timeout_s=30, on_content=came.append)
    assert (len(came), len(completion.timing.chunks_s)) == (calls, content)


async def test_times_are_those_of_the_second_attempt() -> None:
    clock, connections = ManualClock(), 0
    events = CONTENT + STOP + DONE
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(events)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        if connections == 2:
            clock.advance(1.0)
        writer.write(head + events)
        if connections == 1:
            await reader.readuntil(b"POST")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    engine = HttpEngine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", clock=clock)
    await engine.complete(ask("hello"), timeout_s=30)
    times = (await engine.complete(ask("hello"), timeout_s=30)).timing
    assert connections == 2
    assert times.sent_s < times.first_byte_s <= times.done_s
    await engine.close()
    server.close()


def test_waiting_for_an_engine_that_works_does_not_count() -> None:
    deadline = Deadline(300.0)
    deadline.wait(0.0, counts=False)
    assert deadline.left_s(1e6) == 300.0
    deadline.begin(1e6)
    assert deadline.left_s(1e6 + 100.0) == 200.0
    assert deadline.begun_s == 1e6


def test_waiting_without_any_replica_counts() -> None:
    deadline = Deadline(300.0)
    deadline.wait(10.0, counts=True)
    deadline.wait(20.0, counts=True)
    assert deadline.left_s(30.0) == 280.0
    deadline.wait(30.0, counts=False)
    assert deadline.left_s(1000.0) == 280.0
    deadline.wait(1000.0, counts=True)
    deadline.begin(1010.0)
    assert deadline.left_s(1020.0) == 260.0


def test_time_counts_from_the_first_call_on() -> None:
    deadline = Deadline(300.0)
    deadline.begin(5.0)
    deadline.wait(10.0, counts=False)
    deadline.begin(20.0)
    assert deadline.left_s(105.0) == 200.0
    assert deadline.begun_s == 5.0


def test_without_a_deadline_time_never_ends() -> None:
    deadline = Deadline()
    deadline.begin(5.0)
    assert deadline.left_s(1e9) == math.inf


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from(("counts", "not", "begin"))), max_size=30))
def test_remaining_time_never_grows_nor_shrinks_faster_than_time(steps: list[tuple[float, str]]) -> None:
    deadline, now_s, left_s = Deadline(1000.0), 0.0, 1000.0
    for after_s, what in steps:
        now_s += after_s
        before_s, left_s = left_s, deadline.left_s(now_s)
        assert before_s - after_s - 1e-6 <= left_s <= before_s
        if what == "begin":
            deadline.begin(now_s)
        else:
            deadline.wait(now_s, counts=what == "counts")
        assert abs(deadline.left_s(now_s) - left_s) < 1e-6
