from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.engine.launch.machine import available_memory_gib, usable_cores
from forebay.engine.launch.ports import free_ports
from forebay.errors import LaunchError, SettingError


def test_usable_cores_are_those_of_this_process() -> None:
    assert 1 <= len(usable_cores()) <= (os.cpu_count() or 1)


def test_memory_is_bounded_by_the_container(tmp_path: Path) -> None:
    free = available_memory_gib(tmp_path)
    assert free > 0
    (tmp_path / "memory.current").write_text(str(2**20))
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_gib(tmp_path) == pytest.approx(free, rel=0.5)
    (tmp_path / "memory.max").write_text(f"{2**20 + 2**10}\n")
    assert available_memory_gib(tmp_path) == 2**10 / 2**30


def test_ports_that_are_taken_are_passed_over() -> None:
    first = free_ports(20_000, 3, ())
    assert first == sorted(set(first))
    assert not set(free_ports(20_000, 2, first)) & set(first)
    with pytest.raises(LaunchError, match="only 0 of 1"):
        free_ports(65_535, 1, {65_535})
    with pytest.raises(SettingError):
        free_ports(80, 1, ())
