"""Detects other programs' use of the machine."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from forebay.bench import resources
from forebay.bench.resources import ProcessorUse, disturbed, processor_use
from forebay.testing.waiting import wait_until

WORK_S = 0.3


def test_what_others_use_is_what_is_left() -> None:
    before, after = ProcessorUse(100.0, 50.0, 20.0), ProcessorUse(110.0, 65.0, 30.0)
    assert before.others_cores(after) == 0.5
    # Two clocks: what this process used may be counted later than what the machine did.
    assert before.others_cores(ProcessorUse(110.0, 55.0, 30.0)) == 0.0


def test_what_a_child_uses_is_the_measurements_own() -> None:
    def used_s() -> float:
        return processor_use().own_s

    before_s = used_s()
    program = f"import time\nwhile time.process_time() < {WORK_S}: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert used_s() - before_s >= WORK_S * 0.9
        child.kill()


def test_the_time_of_the_machine_continues() -> None:
    before = processor_use()
    begin_s = time.process_time()
    while time.process_time() - begin_s < WORK_S:
        pass
    wait_until(lambda: processor_use().all_s - before.all_s >= WORK_S * 0.5)


def test_cores_that_may_not_be_used_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "usable_cores", lambda: ())
    assert processor_use().all_s == 0


def test_a_tenth_is_allowed() -> None:
    assert disturbed(0.1 * 4, 4) is None
    assert disturbed(0.1 * 4 + 0.01, 4) is not None
