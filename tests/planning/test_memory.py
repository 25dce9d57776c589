"""What fits into an accelerator."""

from __future__ import annotations

import pytest
from tests.planning.test_model_config import DEEPSEEK_V3, LLAMA

from forebay.errors import SettingError
from forebay.planning.memory import ACCELERATORS, GIB, cache_plan, find_accelerator, plan_memory
from forebay.planning.model_config import shape_of


def test_the_known_example() -> None:
    """Llama 3.1 8B, 8 K of context, a card of 40 GB: 16 GB of weights, 1 GB a request, 24 at once."""
    found = plan_memory(shape_of(LLAMA, "llama"), find_accelerator("40GB"), 8192)
    assert round(found.weight_bytes / 1e9) == 16
    assert found.kv_bytes_per_request == GIB
    assert found.requests_at_most == 24
    assert found.requests == 20


def test_what_vllm_prints_of_the_packaged_model() -> None:
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


def test_a_latent_is_held_by_every_rank() -> None:
    """DeepSeek-V3 on eight H200. A card: 0.9 of 140.4 GiB, less an eighth of 641 GiB of weights and 1 GiB, is
    45 GiB. A request of 32,768 tokens takes 61 layers of 576 values of two bytes, 2.14 GiB, on each: 21."""
    found = plan_memory(shape_of(DEEPSEEK_V3, "deepseek"), ACCELERATORS["h200"].times(8), 32_768)
    assert found.requests == 21
    assert found.kv_bytes_per_request == 8 * 61 * 576 * 2 * 32_768


def test_a_rank_holds_one_head_at_least_and_a_reserve_of_its_own() -> None:
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


def test_a_context_that_the_model_does_not_take_is_refused() -> None:
    shape = shape_of({**LLAMA, "max_position_embeddings": 8192}, "llama")
    assert plan_memory(shape, ACCELERATORS["h100"], 8192).context == 8192
    with pytest.raises(SettingError, match=r"--context: expected at most 8192 .* found 8193"):
        plan_memory(shape, ACCELERATORS["h100"], 8193)
    with pytest.raises(SettingError, match="--context"):
        cache_plan(shape, 8193, GIB, GIB)


def test_a_model_that_does_not_fit_is_refused_with_a_way_out() -> None:
    with pytest.raises(SettingError, match=r"15\.0 GiB.*tensor-parallel"):
        plan_memory(shape_of(LLAMA, "llama"), find_accelerator("16GB"), 8192)


@pytest.mark.parametrize("text", ["", "h1000", "-3GB", "0GB", "nan", "1e9GB", "40TB"])
def test_an_unknown_accelerator_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="--accelerator"):
        find_accelerator(text)
