from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from forebay.connectors.files.sink import read_jsonl_sink
from forebay.testing import wait_until

from .conftest import Start

pytestmark = pytest.mark.flink
PROGRAM = """
import logging
import forebay as fb
from forebay.testing import Fixed, ScriptedEngineFactory

logging.basicConfig(level=logging.INFO)
fresh = {"metrics.fetcher.update-interval": "100 ms"}
env = fb.environment(checkpoints="state", every_s=0.3, log_every_s=0.2, options=fresh)
ask = fb.Inference(ScriptedEngineFactory(Fixed(0.01), answers={"line": "done"}), prompt="{{ text }}")
lines = fb.read_text(env, "in", follow=True)
fb.write_jsonl(fb.infer(lines, ask).results, "out")
env.execute("lines")
"""
TIMEOUT_S = 120
LINES = 20


@pytest.mark.long
def test_second_copy_is_rejected_and_a_killed_one_resumes(start: Start, tmp_path: Path) -> None:
    def answers() -> list[tuple[str, str]]:
        results = map(orjson.loads, read_jsonl_sink(tmp_path / "out"))
        return sorted((result["fields"]["text"], result["answer"]) for result in results)

    def write(part: int) -> list[tuple[str, str]]:
        lines = [f"line {part} {n:02}" for n in range(LINES)]
        (tmp_path / "in" / f"{part}.txt").write_text("".join(f"{line}\n" for line in lines))
        return [(line, "done") for line in lines]

    first_half, first = write(1), start("first")
    wait_until(lambda: answers() == first_half, timeout_s=TIMEOUT_S)
    counted = f"infer: {LINES} events in, {LINES} results, 0 dead letters, 0 in flight, 0 waiting\n"
    wait_until(lambda: counted in (tmp_path / "first").read_text(), timeout_s=TIMEOUT_S)
    second = start("second")
    assert second.wait(TIMEOUT_S) == 1
    refusal = (tmp_path / "second").read_text().splitlines()[-1]
    assert f"checkpoints: state is in use by another process ({first.pid})" in refusal
    assert first.poll() is None
    first.kill()
    first.wait()
    second_half, _ = write(2), start("third")
    wait_until(lambda: len(answers()) >= 2 * LINES, timeout_s=TIMEOUT_S)
    assert answers() == [*first_half, *second_half]
    text = (tmp_path / "third").read_text()
    assert "the job resumes from checkpoint state/" in text
    assert "GCSFileSystem" not in text
