"""A Ray program that calls a fleet by Serve's handle, as documented."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.ray_fleet.cluster import ROOT, RayCluster
from tests.deploy.ray.test_on_ray import engine_process
from typer.testing import CliRunner

from forebay.cli import application
from forebay.fleet.endpoints import RayReplicas
from forebay.testing.replica import fetch_report
from forebay.testing.waiting import wait_until

PREFIX = "What all requests of a group have in common. " * 100
PROGRAM = """
import asyncio, json, sys, traceback
import ray

ray.init(log_to_driver=False)

{shown}

async def answer(session, line):
    number, body = json.loads(line)
    try:
        text = b"".join([chunk async for chunk in ask(session, body)]).decode()
    except Exception:
        text = traceback.format_exc()
    print(json.dumps([number, text]), flush=True)


async def main():
    async with aiohttp.ClientSession() as session:
        tasks = []
        while line := await asyncio.to_thread(sys.stdin.readline):
            tasks.append(asyncio.create_task(answer(session, line)))


print("ready", flush=True)
asyncio.run(main())
"""


class Program:
    """The running program: it forwards requests to the fleet `triage`."""

    def __init__(self, process: subprocess.Popen[str], urls: tuple[str, ...]) -> None:
        self._process = process
        self.urls = urls
        self._sent = 0
        self._answers: dict[int, str] = {}

    def send(self, text: str, max_tokens: int = 4) -> int:
        """Start a request; returns its number."""
        assert self._process.stdin is not None
        messages = [{"role": "user", "content": text}]
        body = {"model": "small", "messages": messages, "max_tokens": max_tokens, "ignore_eos": True}
        self._sent += 1
        self._process.stdin.write(json.dumps([self._sent, body]) + "\n")
        self._process.stdin.flush()
        return self._sent

    def answer(self, number: int) -> dict[str, Any]:
        """The answer with this number; waits for it."""
        assert self._process.stdout is not None
        while number not in self._answers:
            found, text = json.loads(self._process.stdout.readline())
            self._answers[found] = text
        text = self._answers.pop(number)
        assert text.startswith("{"), text
        return dict(json.loads(text))

    def answered_by(self, text: str) -> str:
        before = {url: fetch_report(url).completed for url in self.urls}
        self.answer(self.send(text))
        (found,) = (url for url in self.urls if fetch_report(url).completed > before[url])
        return found

    def busy(self) -> list[str]:
        """Engines with a request."""
        return [url for url in self.urls if fetch_report(url).in_flight]


@pytest.fixture
def program(ray_cluster: RayCluster, tmp_path: Path) -> Iterator[Program]:
    path = tmp_path / "fleet.yaml"
    fleet = ray_cluster.fleet("triage") | {"replicas": 2, "max_ongoing": 1}
    fleet["command"] = [*fleet["command"], "--token-s", "0.05", "--chunks", "1000", "--cache-blocks", "1000"]
    path.write_bytes(orjson.dumps(fleet))
    command = ["deploy", "ray", str(path), "--address", ray_cluster.address]
    done = CliRunner().invoke(application(), [*command, "--apply"])
    assert done.exit_code == 0, (done.output, done.exception)
    page = (ROOT / "docs" / "how-to" / "ray.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```py\n(.*?)^```$", page, re.S | re.M)
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.format(shown=shown))
    urls = asyncio.run(RayReplicas(f"{ray_cluster.address}/triage").urls())
    assert len(urls) == 2
    with ray_cluster.program(str(file)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", ray_cluster.output()
        yield Program(process, urls)
    assert CliRunner().invoke(application(), [*command, "--remove"]).exit_code == 0


@pytest.mark.long
@pytest.mark.slow
def test_serve_chooses_by_our_router(program: Program) -> None:
    # A group stays where its prefix is, and groups are spread.
    groups = [f"{number} {PREFIX}" for number in range(4)]
    first = [program.answered_by(f"{group} 1") for group in groups]
    assert set(first) == set(program.urls)
    for turn in range(2, 5):
        assert [program.answered_by(f"{group} {turn}") for group in groups] == first
    usage = program.answer(program.send(groups[0]))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0

    # A full replica is skipped; if all are full, requests wait.
    held = program.send(f"{groups[0]} long", max_tokens=60)
    wait_until(lambda: program.busy() == [first[0]])
    (other,) = set(program.urls) - {first[0]}
    assert program.answered_by(f"{groups[0]} 5") == other
    both = program.send(f"{groups[0]} long, too", max_tokens=60)
    wait_until(lambda: len(program.busy()) == 2)
    for number in (program.send("Is there a place?"), held, both):
        assert program.answer(number)["usage"]["completion_tokens"] > 0

    # So is one whose engine is dead.
    last = program.answered_by(f"{groups[1]} 6")
    engine_process(last).kill()
    (other,) = set(program.urls) - {last}
    wait_until(lambda: _answers(program, groups[1]))
    program.urls = (other,)
    assert program.answered_by(f"{groups[1]} 8") == other


def _answers(program: Program, text: str) -> bool:
    """Whether a request is answered: the first one after a kill may still reach the dead engine."""
    try:
        return "usage" in program.answer(program.send(text))
    except AssertionError:
        return False
