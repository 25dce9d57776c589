"""A container waits until its requests have ended before it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from forebay.deploy.drain import LOOK_S, drain, held
from forebay.ports import free_port

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 7.0
"""


class Vllm:
    """The metrics of a vLLM: at each look, the next of `counts` runs and waits."""

    def __init__(self, counts: list[tuple[float, float]]) -> None:
        self.counts = counts
        self.looks = 0
        vllm = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                running, waiting = vllm.counts[min(vllm.looks, len(vllm.counts) - 1)]
                vllm.looks += 1
                body = METRICS.format(running=running, waiting=waiting).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port


@pytest.fixture
def vllm() -> Iterator[Vllm]:
    made = Vllm([(2.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_what_runs_and_waits_is_counted_once(vllm: Vllm) -> None:
    assert held(vllm.port) == 3.0


def test_it_waits_until_nothing_is_left(vllm: Vllm) -> None:
    time = Time()
    assert drain(300, vllm.port, 0.0, clock=time.clock, sleep=time.sleep) == 2 * LOOK_S
    assert vllm.looks == 3


def test_it_waits_for_those_who_have_not_noticed_yet(vllm: Vllm) -> None:
    time = Time()
    assert drain(300, vllm.port, 15.0, clock=time.clock, sleep=time.sleep) >= 15.0


def test_it_ends_when_its_time_is_over(vllm: Vllm) -> None:
    vllm.counts = [(1.0, 0.0)]
    time = Time()
    assert drain(20, vllm.port, 0.0, clock=time.clock, sleep=time.sleep) == 20


def test_a_server_that_is_gone_holds_nothing() -> None:
    assert held(free_port()) == 0.0
