"""From topic to topic with kills and restores: a `read_committed` consumer gets every result once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from forebay.testing.waiting import wait_until

pytestmark = pytest.mark.flink
WAIT_S = 180.0


class Killable:
    """One pipeline from a topic of four partitions to another, over several lives."""

    def __init__(self, folder: Path, node: Any, jar: Path, topics: dict[str, str]) -> None:
        self.folder = folder
        self.node = node
        self.topics = topics
        self._jar = jar
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, parallelism: int) -> None:
        order = {
            **self.topics,
            "bootstrap": self.node.bootstrap,
            "jar": str(self._jar),
            "state": str(self.folder / "state"),
            "logs": str(self.folder / "logs"),
            "parallelism": str(parallelism),
        }
        (self.folder / "order.json").write_text(json.dumps(order))
        with (self.folder / "said").open("ab") as text:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("job.py")), str(self.folder / "order.json")],
                stdout=text,
                stderr=text,
            )

    def kill(self) -> None:
        from tests.harness.operators import kill_tree

        if self._process is not None:
            kill_tree(self._process)
            self._process = None

    def feed(self, start: int, stop: int) -> None:
        from benchmarks.topic_client import produce

        produce(
            self.node.bootstrap,
            self.topics["source"],
            (
                {
                    "value": orjson.dumps({"text": f"event {n}", "n": n}),
                    "key": f"k{n % 7}",
                    "partition": n % 4,
                }
                for n in range(start, stop)
            ),
        )

    def results(self) -> list[dict[str, Any]]:
        from benchmarks.topic_client import consume_committed

        return [
            orjson.loads(message.value() or b"")
            for message in consume_committed(self.node.bootstrap, self.topics["results"])
        ]

    def await_results(self, count: int) -> None:
        found: list[int] = []

        def there() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self._said()
            found.append(len(self.results()))
            return found[-1] >= count

        wait_until(
            there, WAIT_S, describe=lambda: f"{found} results, not {count}; the job said: {self._said()}"
        )

    def _said(self) -> str:
        return (self.folder / "said").read_text()[-3000:]


@pytest.fixture
def killable(tmp_path: Path, node: Any, kafka_jar: Path, topic: Callable[..., str]) -> Iterator[Killable]:
    topics = {"source": topic(4), "results": topic(4), "letters": topic()}
    made = Killable(tmp_path, node, kafka_jar, topics)
    yield made
    made.kill()


@pytest.mark.long
def test_kills_and_rescaling_lose_and_duplicate_nothing(killable: Killable) -> None:
    killable.feed(0, 400)
    killable.start(parallelism=1)
    killable.await_results(100)
    killable.kill()
    killable.feed(400, 800)
    killable.start(parallelism=2)
    killable.await_results(450)
    killable.node.kill()
    killable.node.start()
    killable.feed(800, 1200)
    killable.await_results(1000)
    killable.kill()
    killable.start(parallelism=1)
    killable.await_results(1200)
    counted = Counter(result["fields"]["n"] for result in killable.results())
    assert counted == Counter(range(1200))
