"""Many events under one key: each has its result, once and in order.

`python tests/flink/one_key.py FOLDER infer 1000000` runs the same with any number of events.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

pytestmark = pytest.mark.flink
EVENTS = min(20_000, 50 * settings.default.max_examples)
"""5,000, and 20,000 with `make test-faults`."""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["infer", "stateful"])
def test_all_events_under_one_key(kind: str, tmp_path: Path) -> None:
    script = Path(__file__).with_name("one_key.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), kind, str(EVENTS)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"{EVENTS} events in" in done.stdout
