"""Hugging Face transformers with static batching: the baseline of continuous batching."""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import signal
import subprocess
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from forebay.bench.load.schedules import fresh_nonce
from forebay.bench.load.workloads import random_ids
from forebay.bench.records import LoadRequest
from forebay.bench.targets.base import TRIAL, OnPiece, Piece
from forebay.engine.launch.progress import tail
from forebay.engine.launch.spec import compute_environment
from forebay.errors import EngineError, LaunchError, ProtocolViolation, ServerFault, SettingError, Unreachable
from forebay.processes import parent_death_signal
from forebay.settings import Settings

SCRIPT = Path(__file__).with_name("static_worker.py")
START_TIMEOUT_S = 300.0
BATCH_TIMEOUT_S = 7200.0
END_TIMEOUT_S = 10.0
MAX_LINE_BYTES = 1 << 20
GATHER_S = 0.01
"""How long an idle worker waits for requests that come with the first one."""
MAX_REQUESTS = 4096
ATTENTIONS = ("sdpa", "eager")
"""Attentions of transformers: PyTorch's own kernel (the default), and plain products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """`python`: one with torch and transformers; `dtype`: torch's name of a number type; `cores` empty: all;
    `threads` 0: torch's choice."""

    python: Path
    model: str
    dtype: str
    attention: str = ATTENTIONS[0]
    cores: tuple[int, ...] = ()
    threads: int = 0
    script: Path = SCRIPT
    start_timeout_s: float = START_TIMEOUT_S
    batch_timeout_s: float = BATCH_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """`prompt_tokens`: of each prompt; `steps`: tokens computed for each; `prefill_s`: until the first of
    them; `step_s`: median from one to the next, None if there is only one."""

    prompt_tokens: tuple[int, ...]
    steps: int
    took_s: float
    prefill_s: float
    step_s: float | None


class TransformersWorker:
    """The process that computes, one batch at a time."""

    def __init__(self, options: WorkerOptions, settings: Settings) -> None:
        self.options = options
        self.about: Mapping[str, Any] = {}
        """After the start: `device`, and `versions` of torch and transformers."""
        self._settings = settings
        self._log = settings.run / "logs" / f"transformers-{secrets.token_hex(4)}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()

    def __enter__(self) -> TransformersWorker:
        if self.alive:
            return self
        options = self.options
        found = {
            "model": options.model,
            "dtype": options.dtype,
            "attention": options.attention,
            "cores": options.cores,
            "threads": options.threads,
            "parent": os.getpid(),
        }
        environment = compute_environment(options.python, options.threads) if options.threads else {}
        if Path(options.model).is_dir():
            environment = {**environment, "HF_HUB_OFFLINE": "1"}
        self._log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [str(options.python), "-I", str(options.script), orjson.dumps(found).decode()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self._settings.child_environment(environment),
                    preexec_fn=parent_death_signal(signal.SIGKILL),  # noqa: PLW1509 - calls one C function
                )
        except OSError as error:
            raise LaunchError(f"transformers: {options.python} cannot be started: {error.strerror}") from None
        try:
            self.about = self._read(options.start_timeout_s)
        except EngineError as error:
            self.close()
            raise LaunchError(
                f"transformers with {options.model} did not start: {error}; the end of {self._log}:\n"
                f"{tail(self._log)}"
            ) from None
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def answer(self, prompts: Sequence[str | Sequence[int]], steps: int) -> BatchAnswer:
        listed = [prompt.tolist() if isinstance(prompt, array) else prompt for prompt in prompts]
        process = self._process
        if process is None or process.stdin is None:
            raise Unreachable("transformers: the process is not running")
        try:
            process.stdin.write(orjson.dumps({"prompts": listed, "steps": steps}) + b"\n")
            process.stdin.flush()
        except (OSError, ValueError):
            raise self._ended() from None
        found = self._read(self.options.batch_timeout_s)
        try:
            answer = BatchAnswer(
                tuple(map(int, found["prompt_tokens"])),
                int(found["steps"]),
                float(found["took_s"]),
                float(found["prefill_s"]),
                None if found["step_s"] is None else float(found["step_s"]),
            )
        except (KeyError, TypeError, ValueError):
            raise ProtocolViolation(f"transformers: no answer to a batch: {str(found)[:200]}") from None
        if len(answer.prompt_tokens) != len(prompts) or answer.steps != steps:
            raise ProtocolViolation(
                f"transformers: {len(prompts)} prompts and {steps} steps were requested; the answer has "
                f"{len(answer.prompt_tokens)} and {answer.steps}"
            )
        return answer

    def close(self) -> None:
        """Kill the process, even during a batch; blocks until it is gone."""
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait(END_TIMEOUT_S)
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline_s, fd = time.monotonic() + timeout_s, self._process.stdout.fileno()
        while (end := self._buffer.find(b"\n")) < 0:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                self.close()
                raise Unreachable(f"transformers: no answer within {timeout_s:g} s")
            data = os.read(fd, 65_536)
            if not data:
                raise self._ended()
            self._buffer += data
            if len(self._buffer) > MAX_LINE_BYTES:
                self.close()
                raise ProtocolViolation(f"transformers: a line of more than {MAX_LINE_BYTES} bytes")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise ProtocolViolation(f"transformers: not a JSON object: {line[:200]!r}")
        if "error" in found:
            raise ServerFault(f"transformers: {str(found['error'])[:2000]}")
        return found

    def _ended(self) -> Unreachable:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT_S)
        status = self._process.returncode
        why = ""
        if status == -signal.SIGKILL:
            why = "; it was killed, probably because memory ran out: try a smaller batch"
        return Unreachable(f"transformers: the process ended with status {status}{why}; log: {self._log}")


def check_batch_size(size: int) -> None:
    if not 1 <= size <= MAX_REQUESTS:
        raise SettingError(f"batch size: expected 1 to {MAX_REQUESTS}, found {size}")


@dataclass(slots=True)
class _Waiting:
    request: LoadRequest
    answered: asyncio.Future[int] = field(repr=False)


class StaticBatchTarget:
    def __init__(self, worker: TransformersWorker, batch_size: int) -> None:
        check_batch_size(batch_size)
        self._worker = worker
        self._batch_size = batch_size
        self._waiting: deque[_Waiting] = deque()
        self._some = asyncio.Event()
        self.batches: list[BatchAnswer] = []
        """Computed batches, in order."""

    @property
    def name(self) -> str:
        return f"transformers, static batches of {self._batch_size}"

    @asynccontextmanager
    async def open(
        self, connections: int = 1, trials: Sequence[LoadRequest] = (TRIAL,)
    ) -> AsyncIterator[None]:
        """As in `Target`; the worker must be running."""
        if not self._worker.alive:
            raise Unreachable("transformers: the process is not running")
        self._some = asyncio.Event()
        serving = asyncio.get_running_loop().create_task(self._serve())
        try:
            yield
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._some.set()
        prompt_tokens = await waiting.answered
        n = request.output_tokens
        on_piece(Piece(True, n, prompt_tokens, n, None, "length"))

    async def _serve(self) -> None:
        while True:
            await self._some.wait()
            await asyncio.sleep(GATHER_S)
            batch: list[_Waiting] = []
            while self._waiting and len(batch) < self._batch_size:
                first = self._waiting.popleft()
                if not first.answered.done():
                    batch.append(first)
            if not self._waiting:
                self._some.clear()
            if batch:
                await self._run(batch)

    async def _run(self, batch: Sequence[_Waiting]) -> None:
        steps = max(one.request.output_tokens for one in batch)
        prompts = [one.request.prompt for one in batch]
        try:
            answer = await asyncio.to_thread(self._worker.answer, prompts, steps)
        except EngineError as error:
            for one in batch:
                if not one.answered.done():
                    one.answered.set_exception(error)
        except asyncio.CancelledError:
            # The thread waits for the batch, and the event loop for the thread.
            self._worker.close()
            raise
        else:
            self.batches.append(answer)
            for one, prompt_tokens in zip(batch, answer.prompt_tokens, strict=True):
                if not one.answered.done():
                    one.answered.set_result(prompt_tokens)


PROBE_STEPS = 16


@dataclass(frozen=True, slots=True)
class BatchCost:
    """A batch of `batch_size` prompts with an attention of transformers: `prefill_s` for all of its prompts,
    `step_s` for the next token of each."""

    attention: str
    batch_size: int
    prefill_s: float
    step_s: float

    def load_s(self, lengths: Sequence[int]) -> float:
        """The predicted time of answers with these lengths, in this order, with a constant step time."""
        total_s = 0.0
        for first in range(0, len(lengths), self.batch_size):
            batch = lengths[first : first + self.batch_size]
            total_s += self.prefill_s * len(batch) / self.batch_size + (max(batch) - 1) * self.step_s
        return total_s


def batch_cost(worker: TransformersWorker, batch_size: int, prompt_tokens: int) -> BatchCost | None:
    """Measure one short batch; blocks."""
    nonce = fresh_nonce()
    prompts = [random_ids(prompt_tokens, nonce, 0, index) for index in range(batch_size)]
    try:
        answer = worker.answer(prompts, PROBE_STEPS)
    except ServerFault:
        return None
    return BatchCost(worker.options.attention, batch_size, answer.prefill_s, answer.step_s or 0.0)


def fastest(costs: Sequence[BatchCost], lengths: Sequence[int]) -> BatchCost:
    if not costs:
        raise SettingError("static batching: no batch size could be measured; name a smaller --batch-size")
    return min(costs, key=lambda cost: cost.load_s(lengths))
