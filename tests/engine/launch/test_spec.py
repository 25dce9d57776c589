from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.launch.dtype import read_processor
from forebay.engine.launch.spec import (
    AS_MAIN,
    MAX_KV_GIB,
    MIN_KV_GIB,
    OVERHEAD_GIB,
    RUNTIME,
    ReplicaSpec,
    available_memory_gib,
    compute_environment,
    core_quota,
    kv_cache_share_gib,
    parse_cores,
    physical_cores,
    share_cores,
    thread_count,
    usable_cores,
    vllm_launch,
)
from forebay.errors import LaunchError, SettingError
from forebay.ports import free_ports_from


def test_command_line_of_vllm(tmp_path: Path) -> None:
    spec = ReplicaSpec(str(tmp_path), "small", kv_cache_gib=0.5, extra=("--seed", "7"))
    launch = vllm_launch(Path("/e/bin/python"), spec, port=8101, cores=(2, 3), threads=2)
    options = dict(zip(launch.command[4::2], launch.command[5::2], strict=False))
    assert launch.command[:4] == ("/e/bin/python", "-I", str(AS_MAIN), "vllm.entrypoints.openai.api_server")
    assert options["--model"] == str(tmp_path)
    assert options["--served-model-name"] == "small"
    assert options["--port"] == "8101"
    assert options["--host"] == "127.0.0.1"
    assert options["--kv-cache-memory-bytes"] == str(2**29)
    assert "disable_any_whitespace" in options["--structured-outputs-config"]
    assert launch.command[-4:] == ("--enable-prompt-tokens-details", "--enforce-eager", "--seed", "7")
    assert options["--dtype"] == "bfloat16"
    assert launch.environment["OMP_NUM_THREADS"] == "2"
    assert launch.environment["TORCHINDUCTOR_CACHE_DIR"] == "/e/torch-cache"
    assert launch.environment["TORCH_COMPILE_DISABLE"] == "1"
    assert launch.environment["HF_HUB_OFFLINE"] == "1"
    assert launch.cores == (2, 3)


def test_hub_model_may_be_fetched_and_eager_mode_omitted() -> None:
    launch = vllm_launch(
        Path("python"), ReplicaSpec("owner/name", "n", eager=False), port=1, cores=(0,), threads=1
    )
    assert "TORCH_COMPILE_DISABLE" not in launch.environment
    assert "HF_HUB_OFFLINE" not in launch.environment
    assert "--enforce-eager" not in launch.command


@pytest.mark.parametrize(("text", "cores"), [("0", (0,)), ("0-2,5", (0, 1, 2, 5)), ("3, 1", (3, 1))])
def test_core_lists(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize(
    "text", ["", "a", "1-", "-1", "2-1", "0,0", "0-9999999", "1,,2", "²", "1-²", "0" * 99]
)
def test_invalid_core_lists(text: str) -> None:
    with pytest.raises(SettingError):
        parse_cores(text)


@given(st.text(alphabet="0123456789-, ²x", max_size=20))
def test_any_text_is_a_core_list_or_a_setting_error(text: str) -> None:
    try:
        cores = parse_cores(text)
    except SettingError:
        return
    assert len(set(cores)) == len(cores) >= 1


@given(st.integers(1, 64), st.integers(1, 32))
def test_cores_are_shared_evenly_without_overlap(cores: int, replicas: int) -> None:
    shares = share_cores(range(cores), replicas)
    assert len(shares) == replicas
    assert min(map(len, shares)) >= 1
    if replicas <= cores:
        assert sum(shares, ()) == tuple(range(cores))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    else:
        used = [share[0] for share in shares]
        assert max(map(used.count, used)) - min(used.count(core) for core in range(cores)) <= 1


@given(st.floats(0, 2000), st.integers(1, 64), st.floats(0, 30))
def test_kv_caches_fit_into_free_memory(available_gib: float, replicas: int, more_gib: float) -> None:
    needed_gib = OVERHEAD_GIB + more_gib
    try:
        share = kv_cache_share_gib(available_gib, replicas, more_gib)
    except SettingError:
        assert available_gib < replicas * (needed_gib + MIN_KV_GIB) + 0.01
        return
    assert MIN_KV_GIB <= share <= MAX_KV_GIB
    assert replicas * (needed_gib + share) <= available_gib + 0.01 * replicas


@pytest.mark.parametrize(
    ("cores", "quota", "threads"),
    [(1, None, 1), (2, None, 2), (3, None, 3), (4, None, 3), (8, None, 7), (8, 2, 2), (2, 4, 2), (4, 1, 1)],
)
def test_one_core_is_left_free_if_there_are_several(cores: int, quota: int | None, threads: int) -> None:
    assert thread_count(cores, quota) == threads


def test_thread_waiting_fits_the_openmp_runtime(tmp_path: Path) -> None:
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


def test_ports_in_use_are_skipped() -> None:
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


def test_processor_name_and_features(tmp_path: Path) -> None:
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


def test_hyperthreads_of_one_core_count_once(tmp_path: Path) -> None:
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
def test_container_quota_limits_the_cores(tmp_path: Path, text: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert core_quota(tmp_path) == cores
    assert core_quota(tmp_path / "none") is None
