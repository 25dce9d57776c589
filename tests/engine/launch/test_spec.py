from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.launch.spec import (
    AS_MAIN,
    MAX_KV_GIB,
    MIN_KV_GIB,
    OVERHEAD_GIB,
    ReplicaSpec,
    kv_cache_share_gib,
    parse_cores,
    share_cores,
    vllm_launch,
)
from forebay.errors import SettingError


def test_the_command_line_of_vllm(tmp_path: Path) -> None:
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


def test_a_model_of_a_hub_may_be_fetched_and_eager_left_out() -> None:
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
def test_what_is_no_core_list(text: str) -> None:
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
def test_cores_are_shared_out_evenly_and_none_twice(cores: int, replicas: int) -> None:
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
def test_kv_caches_fit_into_what_is_free(available_gib: float, replicas: int, more_gib: float) -> None:
    needed_gib = OVERHEAD_GIB + more_gib
    try:
        share = kv_cache_share_gib(available_gib, replicas, more_gib)
    except SettingError:
        assert available_gib < replicas * (needed_gib + MIN_KV_GIB) + 0.01
        return
    assert MIN_KV_GIB <= share <= MAX_KV_GIB
    assert replicas * (needed_gib + share) <= available_gib + 0.01 * replicas
