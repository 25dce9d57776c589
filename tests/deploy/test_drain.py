"""A container waits for the end of its requests before it stops."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import HTTPServer

import pytest
from tests.harness.http_server import QuietHandler, in_thread

import forebay.deploy.drain as drain_module
from forebay.deploy.drain import LOOK_S, drain, held
from forebay.ports import free_port

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 7.0
"""


class Vllm:
    """A vLLM's metrics: at each request, the next of `counts` runs and waits.

    Instead there may be a text of metrics, or a status; 0: the connection ends without an answer.
    """

    def __init__(self, counts: Sequence[tuple[float, float] | str | int]) -> None:
        self.counts = counts
        self.looks = 0
        vllm = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                found = vllm.counts[min(vllm.looks, len(vllm.counts) - 1)]
                vllm.looks += 1
                if found == 0:
                    return
                text = found if isinstance(found, str) else ""
                if isinstance(found, tuple):
                    text = METRICS.format(running=found[0], waiting=found[1])
                self.answer(text.encode(), found if isinstance(found, int) else 200)

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port


@pytest.fixture
def vllm() -> Iterator[Vllm]:
    made = Vllm([(2.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
    with in_thread(made.server):
        yield made


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_running_and_waiting_requests_are_counted_once(vllm: Vllm) -> None:
    assert held(vllm.port) == 3.0


def test_drain_waits_until_nothing_is_left(vllm: Vllm) -> None:
    time = Time()
    assert drain(300, vllm.port, 0.0, clock=time.clock, sleep=time.sleep) == 2 * LOOK_S
    assert vllm.looks == 3


def test_drain_waits_for_clients_that_have_not_noticed(vllm: Vllm) -> None:
    time = Time()
    assert drain(300, vllm.port, 15.0, clock=time.clock, sleep=time.sleep) >= 15.0


def test_drain_ends_at_its_timeout(vllm: Vllm) -> None:
    vllm.counts = [(1.0, 0.0)]
    time = Time()
    assert drain(20, vllm.port, 0.0, clock=time.clock, sleep=time.sleep) == 20


UNKNOWN = [503, 404, "vllm:other 0.0\n", "", 0]


@pytest.mark.parametrize("answer", UNKNOWN, ids=["503", "404", "no gauge", "nothing", "no answer"])
def test_server_without_counts_may_hold_requests(vllm: Vllm, answer: str | int) -> None:
    vllm.counts = [(1.0, 0.0), answer, (1.0, 0.0), (0.0, 0.0)]
    time = Time()
    assert drain(300, vllm.port, 0.0, clock=time.clock, sleep=time.sleep) == 3 * LOOK_S
    vllm.counts = [answer]
    assert held(vllm.port) is None
    assert drain(20, vllm.port, 0.0, clock=time.clock, sleep=time.sleep) == 20


def test_server_with_an_invalid_answer_may_hold_requests() -> None:
    def answer() -> None:
        with server.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(b"SSH-2.0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        assert held(server.getsockname()[1]) is None
        thread.join()


def test_no_proxy_is_used(vllm: Vllm) -> None:
    code = "import sys; from forebay.deploy.drain import held; print(held(int(sys.argv[1])))"
    words = [sys.executable, "-c", code, str(vllm.port)]
    environment = {**os.environ, "http_proxy": f"http://127.0.0.1:{free_port()}", "no_proxy": ""}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "3.0\n"


def test_drain_needs_the_standard_library_only() -> None:
    subprocess.run([sys.executable, "-I", "-S", drain_module.__file__, "0", "8000"], check=True)


def test_a_server_that_is_gone_holds_nothing() -> None:
    assert held(free_port()) == 0.0
