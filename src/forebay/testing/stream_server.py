"""A server with scripted bytes and times, to verify what a client measures."""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httptools
import orjson

from forebay.errors import LaunchError
from forebay.testing.replica import exit_with_parent

START_TIMEOUT_S = 60.0
EVENT_STREAM = "text/event-stream; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """`pieces`: seconds after the whole request has arrived, and bytes of the body. `ends`: if
    False, the connection closes in the middle of the body. `on_piece` receives the number of each piece and
    the event loop's time at which it is written."""

    pieces: tuple[tuple[float, bytes], ...]
    status: int = 200
    content_type: str = EVENT_STREAM
    ends: bool = True
    on_piece: Callable[[int, float], None] = lambda _number, _at_s: None


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    method: str
    path: str
    body: bytes


Script = Callable[[ScriptedRequest], ScriptedAnswer]


def event(document: object) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def whole(document: object, status: int = 200) -> ScriptedAnswer:
    return ScriptedAnswer(((0.0, orjson.dumps(document)),), status, JSON)


def completion(tokens: int, first_s: float, gap_s: float) -> Script:
    """A minimal vLLM: `/v1/models`, and completions of `tokens` tokens, one per event.

    The first token comes after `first_s`, each further one `gap_s` later; the usage follows the last.
    """
    head = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "scripted"}

    def chunk(text: str, reason: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        return event({**head, "choices": [choice]})

    usage = {"prompt_tokens": 16, "completion_tokens": tokens, "total_tokens": 16 + tokens}
    pieces = [(first_s + index * gap_s, chunk(" word")) for index in range(tokens - 1)]
    last = chunk(" word", "length") + event({**head, "choices": [], "usage": usage}) + DONE
    answer = ScriptedAnswer((*pieces, (first_s + (tokens - 1) * gap_s, last)))
    models = whole({"object": "list", "data": [{"id": "scripted", "object": "model", "owned_by": "forebay"}]})
    return lambda asked: answer if asked.method == "POST" else models


class StreamServer:
    """Serves `script` in a thread of this process: a context manager.

    Attributes:
        url: Its address while it runs.
        asked: Requests so far.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stream-server", daemon=True)
        self.port = 0
        self.asked: list[ScriptedRequest] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> StreamServer:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(serve(self._answer), self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _answer(self, asked: ScriptedRequest) -> ScriptedAnswer:
        self.asked.append(asked)
        return self._script(asked)


class StreamServerProcess:
    """`completion` in its own process, optionally bound to `cores`: a context manager.

    Attributes:
        url: Its address while it runs.
    """

    def __init__(
        self, tokens: int, first_s: float, gap_s: float, *, cores: Sequence[int] | None = None
    ) -> None:
        words = ["--tokens", str(tokens), "--first-s", str(first_s), "--gap-s", str(gap_s)]
        words += ["--parent", str(os.getpid())]
        if cores is not None:
            words += ["--cores", ",".join(map(str, cores))]
        self._command = [sys.executable, "-m", "forebay.testing.stream_server", *words]
        self.url = ""
        self.pid = 0

    def __enter__(self) -> StreamServerProcess:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.pid = self._process.pid
        ready, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT_S)
        self.url = self._process.stdout.readline().decode().strip() if ready else ""
        if not self.url:
            self.__exit__()
            raise LaunchError("the scripted server did not start; see its standard error")
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def serve(script: Script, port: int = 0) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: _ScriptedConnection(script), "127.0.0.1", port, backlog=4096)


class _ScriptedConnection(asyncio.Protocol):
    def __init__(self, script: Script) -> None:
        self._script = script
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_message_begin(self) -> None:
        self._path = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        answer = self._script(ScriptedRequest(method, self._path.decode("latin-1"), self._body))
        head = (
            f"HTTP/1.1 {answer.status} Scripted\r\nContent-Type: {answer.content_type}\r\n"
            f"Transfer-Encoding: chunked\r\n\r\n"
        )
        self._write(answer, self._loop.time(), 0, head.encode())

    def _write(self, answer: ScriptedAnswer, asked_s: float, index: int, head: bytes = b"") -> None:
        pieces, parts = answer.pieces, [head]
        now_s = self._loop.time()
        while index < len(pieces) and asked_s + pieces[index][0] <= now_s:
            data = pieces[index][1]
            parts.append(b"%x\r\n%b\r\n" % (len(data), data))
            answer.on_piece(index, now_s)
            index += 1
        if len(parts) == 1 and index < len(pieces):
            parts.clear()
        else:
            head = b""
        over = index == len(pieces)
        if over and answer.ends:
            parts.append(b"0\r\n\r\n")
        if parts:
            self._transport.write(b"".join(parts))
        if not over:
            self._timer = self._loop.call_at(
                asked_s + pieces[index][0], self._write, answer, asked_s, index, head
            )
        elif not answer.ends:
            self._transport.close()


async def _main(options: argparse.Namespace) -> None:
    server = await serve(completion(options.tokens, options.first_s, options.gap_s), options.port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m forebay.testing.stream_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--tokens", type=int, default=20, help="tokens of each answer")
    parser.add_argument("--first-s", type=float, default=0.05, help="seconds to the first token")
    parser.add_argument("--gap-s", type=float, default=0.01, help="seconds between tokens")
    parser.add_argument("--cores", help="cores that it may run on, such as 1")
    parser.add_argument("--parent", type=int, help="exit when the parent process with this id exits")
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, map(int, options.cores.split(",")))
    if options.parent is not None:
        exit_with_parent(options.parent)
    asyncio.run(_main(options))


if __name__ == "__main__":
    main()
