from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.engine.launch.dtype import read_processor
from forebay.engine.launch.spec import available_memory_gib, core_quota, physical_cores, usable_cores
from forebay.errors import LaunchError, SettingError
from forebay.ports import free_ports_from


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
    first = free_ports_from(20_000, 3, ())
    assert first == sorted(set(first))
    assert not set(free_ports_from(20_000, 2, first)) & set(first)
    with pytest.raises(LaunchError, match="only 0 of 1"):
        free_ports_from(65_535, 1, {65_535})
    with pytest.raises(SettingError):
        free_ports_from(80, 1, ())


X86 = """processor\t: 0
model name\t: A Laptop's 5 3500U
flags\t\t: fpu sse2 avx2 fma

processor\t: 1
model name\t: Another
flags\t\t: avx512_bf16
"""
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd bf16\n"


def test_a_processor_shows_its_name_and_features(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(X86)
    found = read_processor(cpuinfo)
    assert (found.name, found.has_bfloat16) == ("A Laptop's 5 3500U", False)
    assert "avx2" in found.features
    cpuinfo.write_text(ARM)
    assert (read_processor(cpuinfo).name, read_processor(cpuinfo).has_bfloat16) == ("", True)
    cpuinfo.write_bytes(b"\xff:\xfe\n::\n")
    assert read_processor(cpuinfo).features == frozenset()
    assert read_processor(tmp_path / "none").features == frozenset()


def test_two_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for core, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores((0, 1, 2, 3), tmp_path) == 2
    assert physical_cores((0, 2), tmp_path) == 1
    assert physical_cores((4, 5), tmp_path) == 2, "which the system does not list"


@pytest.mark.parametrize(
    ("text", "cores"),
    [("200000 100000\n", 2), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("", None)],
)
def test_a_container_may_have_less_time_than_cores(tmp_path: Path, text: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert core_quota(tmp_path) == cores
    assert core_quota(tmp_path / "none") is None
