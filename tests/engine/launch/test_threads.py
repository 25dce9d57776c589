from __future__ import annotations

from pathlib import Path

import pytest

from forebay.engine.launch.spec import RUNTIME, compute_environment, thread_count


@pytest.mark.parametrize(
    ("cores", "quota", "threads"),
    [(1, None, 1), (2, None, 2), (3, None, 3), (4, None, 3), (8, None, 7), (8, 2, 2), (2, 4, 2), (4, 1, 1)],
)
def test_a_core_is_left_free_where_there_are_several(cores: int, quota: int | None, threads: int) -> None:
    assert thread_count(cores, quota) == threads


def test_threads_wait_as_the_runtime_that_is_there_does_it_best(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    without = compute_environment(python, 2)
    assert (without["OMP_WAIT_POLICY"], without["OMP_NUM_THREADS"]) == ("passive", "2")
    assert "LD_PRELOAD" not in without
    runtime = tmp_path / RUNTIME
    runtime.parent.mkdir()
    runtime.touch()
    found = compute_environment(python, 3)
    assert (found["LD_PRELOAD"], found["KMP_BLOCKTIME"]) == (str(runtime), "1")
    assert (found["OMP_NUM_THREADS"], found["VLLM_CPU_OMP_THREADS_BIND"]) == ("3", "nobind")
    assert "OMP_WAIT_POLICY" not in found
