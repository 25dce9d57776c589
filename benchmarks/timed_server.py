"""`python -m benchmarks.timed_server`: a server whose answers have known times, and which reports
the actual ones."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import orjson

from forebay.errors import LaunchError
from forebay.testing.stream_server import DONE, ScriptedAnswer, ScriptedRequest, event, serve, whole

MODEL = "timed"
STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    """A chunk: seconds after the previous one (the first: after the request), and its number of
    tokens. `role`: it only has the role, like the first chunk of a chat."""

    after_s: float
    tokens: int = 1
    role: bool = False


@dataclass(frozen=True, slots=True)
class TimedAnswer:
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
    """Times at which the request was read, each chunk with tokens was written (with their number), and the
    end."""

    read_s: float
    chunks: list[tuple[float, int]]
    ended_s: float = 0.0


class TimedServer:
    """Serves `answers` in turn on the running event loop; an async context manager."""

    def __init__(self, answers: Sequence[TimedAnswer]) -> None:
        self._answers = answers
        self.sent: list[SentAnswer] = []
        self.url = ""

    async def __aenter__(self) -> TimedServer:
        self._server = await serve(self._script)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    def _script(self, asked: ScriptedRequest) -> ScriptedAnswer:
        match asked.path:
            case "/v1/models":
                return whole({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            case "/health":
                return whole({})
            case "/_log":
                return whole([asdict(each) for each in self.sent])
            case "/v1/completions" | "/v1/chat/completions":
                return self._completion(asked)
        return whole({}, 404)

    def _completion(self, asked: ScriptedRequest) -> ScriptedAnswer:
        answer = self._answers[len(self.sent)]
        sent = SentAnswer(asyncio.get_running_loop().time(), [])
        self.sent.append(sent)
        wire = _Wire(asked.path.startswith("/v1/chat"), orjson.loads(asked.body), answer)
        due_s = list(accumulate(step.after_s for step in answer.steps))
        pieces = [(at_s, wire.chunk(step)) for at_s, step in zip(due_s, answer.steps, strict=True)]

        def on_piece(number: int, at_s: float) -> None:
            if number == len(answer.steps):
                sent.ended_s = at_s
            elif tokens := answer.steps[number].tokens:
                sent.chunks.append((at_s, tokens))

        last = (due_s[-1] + answer.end_after_s, wire.end())
        return ScriptedAnswer((*pieces, last), on_piece=on_piece)


class _Wire:
    def __init__(self, chat: bool, body: dict[str, Any], answer: TimedAnswer) -> None:
        options = body.get("stream_options") or {}
        self._chat = chat
        self._answer = answer
        self._sends_usage = answer.usage and bool(options.get("include_usage"))
        self._sends_usage_in_each = self._sends_usage and bool(options.get("continuous_usage_stats"))
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
        return self._event([choice], self._tokens if self._sends_usage_in_each else None)

    def end(self) -> bytes:
        counted = self._answer.counted_tokens
        total = self._tokens if counted is None else counted
        return (self._event([], total) if self._sends_usage else b"") + DONE

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
        return event(document)


@contextmanager
def timed_process(answers: Sequence[TimedAnswer]) -> Iterator[str]:
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
    with urllib.request.urlopen(f"{url}/_log", timeout=STOP_S) as answer:
        return [
            SentAnswer(each["read_s"], [tuple(chunk) for chunk in each["chunks"]], each["ended_s"])
            for each in orjson.loads(answer.read())
        ]


def parse_answers(line: str | bytes) -> list[TimedAnswer]:
    return [
        TimedAnswer(**{**each, "steps": tuple(Step(**step) for step in each["steps"])})
        for each in orjson.loads(line)
    ]


async def _main() -> None:
    async with TimedServer(parse_answers(sys.stdin.readline())) as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())
