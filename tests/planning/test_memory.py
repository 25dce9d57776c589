"""What fits into an accelerator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.test_model_config import DEEPSEEK_V3, LLAMA

from forebay.errors import SettingError
from forebay.planning.kv_cache import CachedLayers, reserved_bytes
from forebay.planning.memory import ACCELERATORS, GIB, cache_plan, find_accelerator, plan_memory
from forebay.planning.model_config import shape_of

LAYERS = st.integers(1, 80)
BYTES = st.sampled_from([512.0, 1024.0, 4096.0, 6144.0, 8192.0])
KINDS = st.lists(
    st.one_of(
        st.builds(CachedLayers, LAYERS, BYTES),
        st.builds(CachedLayers, LAYERS, BYTES, window=st.integers(1, 10_000), chunked=st.booleans()),
        st.builds(CachedLayers, LAYERS, state_bytes=st.floats(1.0, 1e7), states=st.integers(1, 3)),
    ),
    min_size=1,
    max_size=3,
).filter(lambda kinds: any(one.token_bytes for one in kinds))


@given(KINDS, st.integers(1, 200_000), st.integers(1, 16_384))
def test_reservation_covers_held_memory(kinds: list[CachedLayers], tokens: int, step_tokens: int) -> None:
    found = reserved_bytes(kinds, tokens, step_tokens)
    held = sum(one.held_bytes(tokens) for one in kinds)
    assert found >= held * (1 - 1e-9)
    assert found <= reserved_bytes(kinds, tokens + 16, step_tokens)
    assert found <= reserved_bytes(kinds, tokens, 2 * step_tokens)


def test_one_kind_of_layers_has_blocks_and_no_gaps() -> None:
    assert reserved_bytes([CachedLayers(32, 1024.0)], 100, 2048) == 32 * 7 * 16 * 1024
    window = CachedLayers(32, 1024.0, window=100)
    assert reserved_bytes([window], 10_000, 50) == 32 * (10 + 1) * 16 * 1024
    assert reserved_bytes([window], 64, 50) == 32 * (4 + 1) * 16 * 1024
    chunk = CachedLayers(32, 1024.0, window=100, chunked=True)
    assert reserved_bytes([chunk], 10_000, 50) == 32 * 10 * 16 * 1024


def test_the_last_group_of_a_kind_has_gaps() -> None:
    """Gemma 3: 29 layers with a window are six groups of five."""
    full, window = CachedLayers(5, 1024.0), CachedLayers(29, 1024.0, window=16)
    assert reserved_bytes([full, window], 32, 32, block=16) == 5 * 16 * 1024 * (2 + 6 * (2 + 1))
    assert reserved_bytes([full, window], 64, 32, block=32) == 5 * 32 * 1024 * (2 + 6 * (2 + 1))


def test_kinds_of_nearly_the_same_number_are_groups_of_the_larger() -> None:
    """13 and 12 layers: two groups of 13, not three of 12."""
    kinds = [CachedLayers(13, 1024.0), CachedLayers(12, 1024.0, window=16)]
    assert reserved_bytes(kinds, 160, 16) == 13 * 16 * 1024 * (10 + 2 + 1)


def test_smaller_heads_have_blocks_of_more_tokens_or_a_gap() -> None:
    twice = [CachedLayers(4, 2048.0), CachedLayers(4, 1024.0, window=10_000)]
    assert reserved_bytes(twice, 320, 2048) == 4 * 16 * 2048 * (20 + 10 + 1)
    uneven = [CachedLayers(4, 1536.0), CachedLayers(4, 1024.0, window=10_000)]
    assert reserved_bytes(uneven, 320, 2048) == 4 * 16 * 1536 * (20 + 20 + 1)


def test_the_known_example() -> None:
    """Llama 3.1 8B, 8 K of context, a card of 40 GB: 16 GB of weights, 1 GB a request, 24 at once."""
    found = plan_memory(shape_of(LLAMA, "llama"), find_accelerator("40GB"), 8192)
    assert round(found.weight_bytes / 1e9) == 16
    assert found.kv_bytes_per_request == GIB
    assert found.requests_at_most == 24
    assert found.requests == 20


def test_packaged_model_matches_vllms_log() -> None:
    """vLLM 0.32 with `--kv-cache-memory-bytes 536870912 --block-size 32 --max-model-len 2048` and
    smollm2-135m-instruct printed: GPU KV cache size: 23,296 tokens; maximum concurrency 11.38x."""
    shape = shape_of(
        {
            "model_type": "llama",
            "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_hidden_layers": 30,
            "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "tie_word_embeddings": True,
            "dtype": "bfloat16",
        },
        "smollm2",
    )  # fmt: skip
    assert shape.weight_bytes == pytest.approx(269_060_552, rel=0.001)
    found = cache_plan(shape, 2048, 0.5 * GIB, 0.5 * GIB)
    assert found.kv_tokens == pytest.approx(23_296, rel=0.05)
    assert found.kv_bytes / found.kv_bytes_per_request == pytest.approx(11.38, rel=0.05)


def test_more_accelerators_hold_more() -> None:
    shape, one = shape_of(LLAMA, "llama"), ACCELERATORS["l4"]
    assert plan_memory(shape, one.times(2), 8192).requests > 2 * plan_memory(shape, one, 8192).requests


def test_latent_cache_is_held_by_every_rank() -> None:
    """DeepSeek-V3 on eight H200."""
    found = plan_memory(shape_of(DEEPSEEK_V3, "deepseek"), ACCELERATORS["h200"].times(8), 32_768)
    assert found.requests == 21
    assert found.kv_bytes_per_request == 8 * 61 * 576 * 2 * 32_768


def test_rank_holds_one_head_at_least_and_its_own_reserve() -> None:
    four = shape_of({**LLAMA, "num_key_value_heads": 4}, "llama")
    card = ACCELERATORS["a100-40gb"]
    on_four, on_eight = plan_memory(four, card.times(4), 8192), plan_memory(four, card.times(8), 8192)
    assert on_eight.kv_bytes_per_request == 2 * on_four.kv_bytes_per_request
    room = 8 * (0.9 * 40 * GIB - GIB) - four.weight_bytes
    assert on_eight.kv_bytes == pytest.approx(room)


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(32, 8, 3), (32, 8, 64), (24, 6, 4)])
def test_heads_that_cannot_be_split_are_refused(heads: int, kv_heads: int, ranks: int) -> None:
    shape = shape_of({**LLAMA, "num_attention_heads": heads, "num_key_value_heads": kv_heads}, "llama")
    with pytest.raises(SettingError, match="--tensor-parallel"):
        plan_memory(shape, ACCELERATORS["h100"].times(ranks), 8192)


def test_context_beyond_the_model_is_rejected() -> None:
    shape = shape_of({**LLAMA, "max_position_embeddings": 8192}, "llama")
    assert plan_memory(shape, ACCELERATORS["h100"], 8192).context == 8192
    with pytest.raises(SettingError, match=r"--context: expected at most 8192 .* found 8193"):
        plan_memory(shape, ACCELERATORS["h100"], 8193)
    with pytest.raises(SettingError, match="--context"):
        cache_plan(shape, 8193, GIB, GIB)


def test_model_that_does_not_fit_is_rejected_with_a_fix() -> None:
    with pytest.raises(SettingError, match=r"15\.0 GiB.*tensor-parallel"):
        plan_memory(shape_of(LLAMA, "llama"), find_accelerator("16GB"), 8192)


@pytest.mark.parametrize("text", ["", "h1000", "-3GB", "0GB", "nan", "1e9GB", "40TB"])
def test_an_unknown_accelerator_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="--accelerator"):
        find_accelerator(text)
