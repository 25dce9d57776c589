"""A fake replica without HTTP, for tests in virtual time (`clock`)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from forebay.engine import Deadline
from forebay.engine.load import ReplicaCounters
from forebay.engine.replica import ServedModel
from forebay.errors import AttemptTimeout, ModelNotFound, Overloaded, RateLimited, Unreachable
from forebay.records import Completion, ReplicaLoad, Request, Sampling, Timing, Usage
from forebay.testing.answers import answer_to, request_text, tokens
from forebay.testing.engine import ERRORS
from forebay.testing.replica.work import ReplicaWork, TokenBucket, WorkReport
from forebay.testing.script import ReplicaScript


class InsideReplica:
    """Does what `FakeReplica` does with the same script; a `ReplicaConnection` of the running event
    loop. `down`: it refuses all."""

    def __init__(self, script: ReplicaScript) -> None:
        self.script = script
        self.down = False
        self.calls: Counter[str] = Counter()
        self._work = ReplicaWork(slots=script.slots, crowding=script.crowding)
        self._slots = None if script.slots is None else asyncio.Semaphore(script.slots)
        self._bucket = TokenBucket(script.calls_per_s, script.calls_at_once)
        self._answered: set[str] = set()
        self._waiting = self._running = self._aborted = 0
        self._tokens = 0.0

    @property
    def engine(self) -> InsideReplica:
        return self

    @property
    def speed(self) -> float:
        return self._work.speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._work.speed = speed

    def work(self) -> WorkReport:
        return WorkReport(
            self._work.speed,
            *self._work.times,
            answers=len(self._answered),
            calls=self.calls.total(),
            aborted=self._aborted,
            waiting=self._waiting,
            running=self._running,
        )

    async def complete(
        self,
        request: Request,
        *,
        timeout_s: float,
        deadline: Deadline | None = None,
        on_content: Callable[[int], None] | None = None,
    ) -> Completion:
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        self._reach()
        if deadline is not None:
            deadline.begin(sent_s)
            timeout_s = min(timeout_s, deadline.left_s(sent_s))
        self.calls[request.id] += 1
        try:
            answering = self._answer(request, on_content or _nothing)
            text, reason, usage = await asyncio.wait_for(answering, min(timeout_s, 1e9))
        except asyncio.TimeoutError:
            self._aborted += 1
            raise AttemptTimeout("no time is left") from None
        except asyncio.CancelledError:
            self._aborted += 1
            raise
        done_s = loop.time()
        return Completion(text, reason, usage, Timing(sent_s, done_s, done_s, done_s, (done_s,)))

    def _refuse(self, request: Request) -> str | None:
        script, id = self.script, request.id
        fault = script.faults.pick(id, request_text(request), self.calls[id])
        if fault in ERRORS:
            raise ERRORS[fault](f"scripted fault {fault}", retry_after_s=1.0 if fault == "429" else None)
        wait_s = self._bucket.take(asyncio.get_running_loop().time())
        if wait_s:
            raise RateLimited("too many calls", retry_after_s=wait_s)
        if script.max_calls is not None and self._waiting + self._running >= script.max_calls:
            raise RateLimited("too many calls at a time", retry_after_s=script.retry_after_s)
        if script.max_queue is not None and self._waiting >= script.max_queue:
            raise Overloaded("the queue is full")
        return fault

    async def _answer(self, request: Request, on_content: Callable[[int], None]) -> tuple[str, str, Usage]:
        script, id = self.script, request.id
        text = request_text(request)
        fault = self._refuse(request)
        self._waiting += 1
        try:
            if self._slots is not None:
                await self._slots.acquire()
        finally:
            self._waiting -= 1
        self._running += 1
        try:
            with self._work.running() as done:
                if fault == "hang":
                    await asyncio.Event().wait()
                answer, reason = answer_to(
                    text, request.schema, max_tokens=request.sampling.max_tokens, ignore_eos=True
                )
                usage = Usage(tokens(text), tokens(answer))
                await self._work.do(script.delay(id) + script.prefill_s_per_char * len(text))
                decode_s = script.token_s * usage.completion_tokens + script.decode(id)
                if script.streams:
                    on_content(1)
                    for _ in range(script.chunks - 1):
                        await self._work.do(decode_s / (script.chunks - 1))
                        on_content(1)
                if not script.streams or script.chunks == 1:
                    await self._work.do(decode_s)
                if not script.streams:
                    on_content(1)
                self._reach()
                if id not in self._answered:
                    self._answered.add(id)
                    done()
                self._tokens += usage.completion_tokens
                return answer, reason, usage
        finally:
            self._running -= 1
            if self._slots is not None:
                self._slots.release()

    async def check_health(self, timeout_s: float) -> bool:
        self._reach()
        return "/health" not in self.script.absent

    async def list_models(self, timeout_s: float) -> tuple[ServedModel, ...]:
        self._ask("/v1/models")
        return tuple(ServedModel(name) for name in self.script.models)

    async def fetch_metrics(self, timeout_s: float) -> tuple[ReplicaLoad, ReplicaCounters]:
        self._ask("/metrics")
        load = ReplicaLoad(asyncio.get_running_loop().time(), float(self._running), float(self._waiting))
        return load, ReplicaCounters(generation_tokens=self._tokens)

    async def fetch_cache_tokens(self, timeout_s: float) -> float | None:
        self._ask("/metrics")
        return None

    async def probe(self, model: str, timeout_s: float) -> None:
        self._reach()
        request = Request("probe", model, prompt="a", sampling=Sampling(max_tokens=1))
        self._refuse(request)
        self._waiting += 1
        try:
            await asyncio.wait_for(self._first_token(request), timeout_s)
        except asyncio.TimeoutError:
            raise AttemptTimeout("no time is left") from None
        finally:
            self._waiting -= 1

    async def _first_token(self, request: Request) -> None:
        if self._slots is not None:
            await self._slots.acquire()
        try:
            await self._work.do(self.script.delay(request.id))
        finally:
            if self._slots is not None:
                self._slots.release()

    async def close(self) -> None: ...

    def _ask(self, path: str) -> None:
        self._reach()
        if path in self.script.absent:
            raise ModelNotFound(f"{path} is absent")

    def _reach(self) -> None:
        if self.down:
            raise Unreachable("the replica is down")


def _nothing(tokens: int) -> None: ...
