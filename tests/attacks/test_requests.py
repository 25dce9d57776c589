"""No request makes the gateway fail, hang or grow, or treat a body as a request."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.testing.replica import FakeReplica, ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

from ..gateway.conftest import Served, before, until  # noqa: TID252
from ..gateway.test_bad_input import raw  # noqa: TID252
from .bounds import without_standstill
from .mutations import CHANGES, COMMON, MAX_BYTES, WIDE, mutated
from .requests import HIDING, INNER_ID, REFUSED, RIGHT, WORDS, Sent, call, exchange, read_all, statuses

pytestmark = pytest.mark.heavy

TOGETHER = 50
"""Concurrent clients."""
OWN = frozenset((200, 400, 401, 403, 404, 405, 408, 413, 429, 431, 503))
"""Statuses for clients; 503 if there are too many."""
GROWTH_BYTES = 24 << 20
LIMITS = {"header_s": 0.3, "body_s": 0.3, "idle_s": 1, "request_s": 5.0, "max_body_bytes": 100_000}
SCRIPT = ReplicaScript(delay=Fixed(0.0), chunks=2)


class Attacked:
    """A gateway and its replica in a thread, and the errors that it logged."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.served: Served
        self.replica: FakeReplica

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(300)

    def answers(self, *clients: Sent) -> list[bytes]:
        """The answers for each client."""

        return answers_of(self.served.port, clients)

    def is_well(self) -> None:
        """Nothing is left of earlier clients, and another one is answered."""
        [answer] = self.answers(Sent((call(b"connection: close"),)))
        assert statuses(answer) == [200]
        assert self.errors == []
        assert self.served.gateway.in_flight == 0
        assert self.served.gateway._room.held == 0


def answers_of(port: int, clients: Sequence[Sent]) -> list[bytes]:
    async def all_of_them() -> list[bytes]:
        return await asyncio.gather(
            *(without_standstill(partial(exchange, port, client)) for client in clients)
        )

    return asyncio.run(all_of_them())


class Errors(logging.Handler):
    def __init__(self, seen: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.append(self.format(record))


@contextmanager
def serving(folder: Any) -> Iterator[Attacked]:
    attacked, stack = Attacked(), AsyncExitStack()
    (folder / "key").write_text("sk-right")
    keys = [{"name": "a", "key": {"file": str(folder / "key")}}]

    async def start() -> None:
        attacked.served, [attacked.replica] = await stack.enter_async_context(
            before(SCRIPT, keys=keys, limits=LIMITS)
        )

    thread = threading.Thread(target=attacked.loop.run_forever, name="attacked", daemon=True)
    thread.start()
    handler = Errors(attacked.errors)
    logging.getLogger().addHandler(handler)
    try:
        attacked.run(start())
        yield attacked
        attacked.run(stack.aclose())
    finally:
        logging.getLogger().removeHandler(handler)
        attacked.loop.call_soon_threadsafe(attacked.loop.stop)
        thread.join(60)
        attacked.loop.close()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with serving(tmp_path_factory.mktemp("attacked")) as one:
        yield one


def test_valid_requests_are_answered(attacked: Attacked) -> None:
    answers = attacked.answers(*(Sent((raw,)) for raw in RIGHT))
    expected = [[200]] * 9 + [[404]] + [[200, 200]]
    assert [statuses(answer) for answer in answers] == expected


def test_request_hidden_in_a_body_is_not_run(attacked: Attacked) -> None:
    answers = attacked.answers(*(Sent((raw,)) for raw in HIDING.values()))
    wrong = {name: told for name, told in zip(HIDING, map(statuses, answers), strict=True) if len(told) > 1}
    assert wrong == {}
    assert INNER_ID.decode() not in attacked.replica.report().calls
    attacked.is_well()


def test_forbidden_requests_are_rejected(attacked: Attacked) -> None:
    answers = attacked.answers(*(Sent((raw,)) for raw in REFUSED.values()))
    for name, told in zip(REFUSED, map(statuses, answers), strict=True):
        assert all(400 <= status < 500 for status in told), (name, told)
    attacked.is_well()


async def test_malformed_oversized_head_is_answered_once() -> None:
    errors: list[str] = []
    handler = Errors(errors)
    logging.getLogger().addHandler(handler)
    try:
        async with before() as (served, _):
            reader, writer = await raw(served, b"GET /health HTTP/1.1\r\nx-a: 1\r\n")
            opened = served.server.server_state.connections
            await until(lambda: any(connection._in_head for connection in opened))  # type: ignore[union-attr]
            writer.write(b"x\0: 1\r\n" + b"a" * 65_000)
            assert statuses(await without_standstill(partial(read_all, reader))) == [400]
            writer.close()
    finally:
        logging.getLogger().removeHandler(handler)
    assert errors == []


def cut(raw: bytes, places: list[int], waits: bool) -> Sent:
    marks = sorted({0, *(place * len(raw) >> 16 for place in places), len(raw)})
    return Sent(tuple(raw[a:b] for a, b in pairwise(marks)) or (raw,), waits)


clients = st.builds(
    cut,
    mutated(RIGHT + tuple(HIDING.values()), WORDS),
    st.lists(st.integers(0, (1 << 16) - 1), max_size=3),
    st.sampled_from([False, False, False, True]),
)


def batches() -> int:
    """Number of batches of `TOGETHER` clients: 10,000 clients in all with `make test-attacks`, which sets
    2,600 examples."""
    return 200 if settings.default.max_examples > 1000 else 2


@settings(max_examples=batches(), suppress_health_check=list(HealthCheck))
@given(together=st.lists(clients, min_size=TOGETHER, max_size=TOGETHER))
def test_invalid_requests_are_rejected_without_a_trace(attacked: Attacked, together: list[Sent]) -> None:
    for client, answer in zip(together, attacked.answers(*together), strict=True):
        assert set(statuses(answer)) <= OWN, (client, answer[:500])
    attacked.is_well()


def test_invalid_requests_do_not_grow_the_gateway(tmp_path: Path) -> None:
    """In its own process, because hypothesis itself grows."""
    (tmp_path / "gateway.yaml").write_text(json.dumps({"limits": LIMITS}))
    dice = random.Random(5)
    with ReplicaProcess(SCRIPT) as replica:
        command = [sys.executable, "-m", "forebay", "gateway", "--port", "0", "--engine", replica.url]
        process = subprocess.Popen(
            [*command, "--config", tmp_path / "gateway.yaml"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rsplit(":", 1)[1])
            sizes = []
            for _ in range(batches()):
                answers_of(port, [Sent((any_wrong(dice),)) for _ in range(TOGETHER)])
                sizes.append(psutil.Process(process.pid).memory_info().rss)
        finally:
            process.terminate()
            process.wait(60)
    assert max(sizes) - sizes[len(sizes) // 4] < GROWTH_BYTES


def any_wrong(dice: random.Random) -> bytes:
    raw = dice.choice(RIGHT)
    for _ in range(dice.randrange(6)):
        a, b = dice.randrange(WIDE), dice.randrange(WIDE)
        raw = dice.choice(CHANGES)(raw, a, b, (*WORDS, *COMMON))[:MAX_BYTES]
    return raw
