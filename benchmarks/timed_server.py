"""`python -m benchmarks.timed_server`: a server whose answers come at known times, and which tells when that
was.

It speaks OpenAI's protocol as vLLM does, in a process of its own. The answers are the first line of standard
input, as JSON; the first line of standard output is its address. The n-th request gets the n-th answer. `GET
/_log` tells what it did, in seconds of the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from aiohttp import web

from forebay.errors import LaunchError

MODEL = "timed"
STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    """A chunk of an answer: how long after the one before it (the first: after the request), and how many
    tokens it holds. Without tokens it has no text; `role`: it only names the role, as the first of a chat."""

    after_s: float
    tokens: int = 1
    role: bool = False


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer. `end_after_s`: from the last chunk to the usage and the end. `counted_tokens`: what its
    usage says; None: the truth. `usage`: whether it has one."""

    steps: tuple[Step, ...]
    end_after_s: float = 0.0
    usage: bool = True
    counted_tokens: int | None = None
    cached_tokens: int = 0

    @property
    def tokens(self) -> int:
        return sum(step.tokens for step in self.steps)


@dataclass(slots=True)
class SentAnswer:
    """What was done: when the request was read, when each chunk with tokens was written and how many it held,
    and when the end was."""

    read_s: float
    chunks: list[tuple[float, int]]
    ended_s: float = 0.0


class TimedServer:
    """Serves `answers` on the running event loop; an async context manager."""

    def __init__(self, answers: Sequence[TimedAnswer]) -> None:
        self._answers = answers
        self._runner: web.AppRunner | None = None
        self.sent: list[SentAnswer] = []
        self.url = ""

    async def __aenter__(self) -> TimedServer:
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/_log", self._log)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _log(self, request: web.Request) -> web.Response:
        return web.json_response([asdict(each) for each in self.sent])

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        now_s = asyncio.get_running_loop().time
        sent = SentAnswer(now_s(), [])
        answer = self._answers[len(self.sent)]
        self.sent.append(sent)
        body = orjson.loads(await request.read())
        wire = _Wire(request.path.startswith("/v1/chat"), body, answer)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        due_s = sent.read_s
        for step in answer.steps:
            due_s += step.after_s
            await asyncio.sleep(due_s - now_s())
            if step.tokens:
                sent.chunks.append((now_s(), step.tokens))
            await response.write(wire.chunk(step))
        await asyncio.sleep(due_s + answer.end_after_s - now_s())
        sent.ended_s = now_s()
        await response.write_eof(wire.end())
        return response


class _Wire:
    """The bytes of one answer."""

    def __init__(self, chat: bool, body: dict[str, Any], answer: TimedAnswer) -> None:
        options = body.get("stream_options") or {}
        self._chat = chat
        self._answer = answer
        self._says = answer.usage and bool(options.get("include_usage"))
        self._says_in_each = self._says and bool(options.get("continuous_usage_stats"))
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        self._prompt_tokens = len(prompt if isinstance(prompt, list) else str(prompt).split())
        self._left = sum(1 for step in answer.steps if step.tokens)
        self._tokens = 0

    def chunk(self, step: Step) -> bytes:
        text = "word " * step.tokens
        self._tokens += step.tokens
        self._left -= bool(step.tokens)
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        if self._chat:
            choice["delta"] = {"role": "assistant", "content": ""} if step.role else {"content": text}
        else:
            choice["text"] = text
        if step.tokens and not self._left:
            choice["finish_reason"] = "length"
        return self._event([choice], self._tokens if self._says_in_each else None)

    def end(self) -> bytes:
        counted = self._answer.counted_tokens
        total = self._tokens if counted is None else counted
        return (self._event([], total) if self._says else b"") + b"data: [DONE]\n\n"

    def _event(self, choices: list[Any], tokens: int | None) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head = {"id": "timed", "object": kind, "model": MODEL, "created": 0}
        document: dict[str, Any] = {**head, "choices": choices}
        if tokens is not None:
            document["usage"] = {
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": tokens,
                "total_tokens": self._prompt_tokens + tokens,
                "prompt_tokens_details": {"cached_tokens": self._answer.cached_tokens},
            }
        return b"data: " + orjson.dumps(document) + b"\n\n"


@contextmanager
def timed_process(answers: Sequence[TimedAnswer]) -> Iterator[str]:
    """The address of a server in a process of its own, which ends with the block."""
    command = [sys.executable, "-m", "benchmarks.timed_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(orjson.dumps(list(answers)) + b"\n")
            process.stdin.flush()
            url = process.stdout.readline().decode().strip()
            if not url:
                raise LaunchError("the timed server did not start; see its standard error")
            yield url
        finally:
            process.kill()


def fetch_log(url: str) -> list[SentAnswer]:
    """What the server at `url` did; blocks."""
    with urllib.request.urlopen(f"{url}/_log", timeout=STOP_S) as answer:
        return [
            SentAnswer(each["read_s"], [tuple(chunk) for chunk in each["chunks"]], each["ended_s"])
            for each in orjson.loads(answer.read())
        ]


def parse_answers(line: str | bytes) -> list[TimedAnswer]:
    """Answers as JSON, as `timed_process` sends them."""
    return [
        TimedAnswer(**{**each, "steps": tuple(Step(**step) for step in each["steps"])})
        for each in orjson.loads(line)
    ]


async def _main() -> None:
    """Serve until standard input ends."""
    async with TimedServer(parse_answers(sys.stdin.readline())) as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())
