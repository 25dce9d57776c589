"""Published models have the sizes that their makers and vLLM report."""

from __future__ import annotations

from typing import Any

import pytest
from tests.planning import model_configs as models

from forebay.errors import SettingError
from forebay.planning.kv_cache import CachedLayers
from forebay.planning.memory import GIB, cache_plan, find_accelerator, plan_memory
from forebay.planning.model_config import shape_of


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (models.MISTRAL_7B, 7.242),
        (models.GPT_OSS_20B, 20.91),
        (models.GEMMA_2_9B, 9.242),
        (models.GEMMA_3_4B, 4.300),
        (models.GEMMA_4_E4B, 7.463),
        (models.GEMMA_4_26B, 25.23),
        (models.COMMAND_R, 34.98),
        (models.COMMAND_R_7B, 8.028),
        (models.QWEN_2_5_VL_7B, 8.292),
        (models.QWEN_3_VL_8B, 8.767),
        (models.QWEN_3_NEXT_80B, 79.67),
        (models.DEEPSEEK_V3_2, 671.9),
        (models.NEMOTRON_3_NANO, 31.58),
        (models.GRANITE_4_SMALL, 32.21),
    ],
)
def test_parameters(config: dict[str, Any], billions: float) -> None:
    assert shape_of(config, "config.json").parameters / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(
    ("config", "concurrency", "asynchronous"),
    [
        (models.MISTRAL_7B, 26.6, 19.96),
        (models.GPT_OSS_20B, 84.2, 70.3),
        (models.GEMMA_2_9B, 8.70, 7.62),
    ],
)
def test_windows_reserve_a_step(config: dict[str, Any], concurrency: float, asynchronous: float) -> None:
    """vLLM's "Maximum concurrency" for 8,192 tokens with 20 GiB and `max_num_batched_tokens` 2048."""
    shape = shape_of(config, "config.json")
    found = cache_plan(shape, 8192, 20 * GIB, 20 * GIB, step_tokens=2048)
    assert found.concurrency == pytest.approx(concurrency, rel=0.002)
    twice = cache_plan(shape, 8192, 20 * GIB, 20 * GIB, step_tokens=2 * 2048)
    assert twice.concurrency == pytest.approx(asynchronous, rel=0.002)


def test_missing_embedding_tie_follows_the_type() -> None:
    """Gemma and Cohere have one matrix for input and output, and their configs do not mention it."""
    for config in (models.GEMMA_2_9B, models.GEMMA_3_4B, models.COMMAND_R):
        untied = shape_of({**config, "tie_word_embeddings": False}, "config.json")
        tied = shape_of(config, "config.json")
        assert tied == shape_of({**config, "tie_word_embeddings": True}, "config.json")
        assert untied.parameters > 1.05 * tied.parameters
    fits = plan_memory(shape_of(models.COMMAND_R, "command-r"), find_accelerator("a100-80gb"), 1024)
    assert fits.requests > 0


def test_if_two_defaults_disagree_embeddings_are_not_tied() -> None:
    """Mistral Small 3.1 has an output layer of its own; transformers' outer default is tied."""
    text = {**models.MISTRAL_7B, "tie_word_embeddings": None}
    nested = {"model_type": "mistral3", "text_config": text}
    own = shape_of(models.MISTRAL_7B, "mistral").parameters
    assert shape_of(nested, "mistral3").parameters == own
    assert shape_of({**nested, "tie_word_embeddings": True}, "mistral3").parameters < own


def test_gemma_3_leaves_most_fields_to_defaults() -> None:
    shape = shape_of(models.GEMMA_3_4B, "gemma")
    assert (shape.heads, shape.caches[0].kv_heads, shape.max_context) == (8, 4, 131_072)
    assert [(one.layers, one.window) for one in shape.caches] == [(5, 0), (29, 1024)]
    assert shape.caches[0].token_bytes == 2 * 4 * 256 * 2


def test_gemma_4_shares_caches_and_has_two_sizes_of_heads() -> None:
    """Of 42 layers the last 18 read the caches of others: 4 full layers and 20 with a window are left."""
    small = shape_of(models.GEMMA_4_E4B, "gemma")
    assert small.caches == (CachedLayers(4, 4096, 2), CachedLayers(20, 2048, 2, 512))
    # Blocks of the smaller heads hold 32 tokens, those of the larger ones 16.
    assert small.reserved_bytes(8192, 2048) == 4 * (512 + 5 * 81) * 16 * 4096
    large = shape_of(models.GEMMA_4_26B, "gemma")
    assert large.caches == (CachedLayers(5, 4096, 2), CachedLayers(25, 8192, 8, 1024))
    assert large.active_parameters == pytest.approx(3.84e9, rel=0.01)
    # Four ranks: each has two of eight heads, and one of the two global ones.
    assert [one.token_bytes for one in large.over(4).caches] == [2 * 4096, 8192]


def test_a_list_of_experts_per_token_counts() -> None:
    """Hunyuan-A13B gives one number for each layer."""
    config = {
        **models.MISTRAL_7B, "model_type": "hunyuan_v1_moe", "intermediate_size": 3072, "num_experts": 64,
        "moe_topk": [8] * 32, "num_shared_expert": [1] * 32, "vocab_size": 128_167,
        "tie_word_embeddings": True,
    }  # fmt: skip
    shape = shape_of(config, "hunyuan")
    assert shape.parameters == pytest.approx(80.39e9, rel=0.001)
    assert shape.active_parameters == pytest.approx(13e9, rel=0.05)


def test_model_in_32_bits_is_loaded_in_16() -> None:
    shape = shape_of(models.GEMMA_2_9B, "gemma")
    assert shape.weight_bytes == 2 * shape.parameters
    assert shape.caches[0].token_bytes == 2 * 8 * 256 * 2


def test_states_take_whole_blocks_of_attention() -> None:
    shape = shape_of(models.QWEN_3_NEXT_80B, "qwen")
    assert [(one.layers, one.token_bytes, one.state_bytes) for one in shape.caches] == [
        (12, 2048, 0),
        (36, 0, 1_097_728),
    ]
    assert shape.reserved_bytes(8192, 2048) == 12 * (16 + 3 * 2) * 544 * 2048
    assert shape.kv_cache_bytes(8192) == 12 * 8192 * 2048 + 36 * 1_097_728
    exact = {**models.QWEN_3_NEXT_80B, "model_type": "qwen3_5_moe_text", "mamba_ssm_dtype": "float32"}
    assert shape_of(exact, "qwen").caches[1].state_bytes == 1_097_728 + 2 * 32 * 128 * 128


def test_mamba_states() -> None:
    """Nemotron 3 Nano: 23 layers of Mamba-2, whose state is in 32 bits, and 6 of attention."""
    nano = shape_of(models.NEMOTRON_3_NANO, "nemotron")
    state = 3 * (4096 + 2 * 8 * 128) * 2 + 4096 * 128 * 4
    assert nano.caches == (CachedLayers(6, 1024, 2), CachedLayers(23, state_bytes=state, states=3))
    assert nano.reserved_bytes(8192, 2048) == 6 * (4 + 4 * 3) * 2096 * 1024
    assert nano.active_parameters == pytest.approx(3.23e9, rel=0.01)
    granite = shape_of(models.GRANITE_4_SMALL, "granite")
    assert [one.layers for one in granite.caches] == [4, 36]
    assert granite.caches[1].state_bytes == 2 * (3 * (8192 + 2 * 128) + 8192 * 128)
    dense = {**models.GRANITE_4_SMALL, "num_local_experts": 0, "shared_intermediate_size": 12_288}
    assert (
        shape_of(dense, "granite").parameters
        == shape_of(dense, "granite").active_parameters + 41 * 4096 * 2 - 4096
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hybrid_override_pattern": "M*"}, "52 layers"),
        ({"hybrid_override_pattern": "M*X-" * 13}, "only M"),
        ({"hybrid_override_pattern": "M-" * 26}, "at least one layer with full attention"),
        ({"hybrid_override_pattern": None}, "hybrid_override_pattern"),
    ],
)
def test_patterns_that_are_not_known_are_rejected(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        shape_of({**models.NEMOTRON_3_NANO, **change}, "config.json")


def test_sparse_attention_keeps_keys_of_an_index() -> None:
    """DeepSeek-V3.2: 128 bytes and a scale of four bytes for each token and layer."""
    shape = shape_of(models.DEEPSEEK_V3_2, "deepseek")
    assert shape.caches[0].token_bytes == 576 * 2 + 132
    eight_bits = shape_of(models.DEEPSEEK_V3_2, "deepseek", kv_type="fp8").caches[0]
    assert eight_bits.token_bytes == 656 + 132, "vLLM's fp8_ds_mla"
    shared = {**models.DEEPSEEK_V3_2, "index_topk_freq": 4}
    assert shape_of(shared, "deepseek").caches[0].token_bytes == 576 * 2 + 132 * 16 / 61
    with pytest.raises(SettingError, match="indexer_types"):
        shape_of({**models.DEEPSEEK_V3_2, "indexer_types": ["full"]}, "deepseek")


def test_nested_and_flat_configs_of_one_model_agree() -> None:
    flat = models.QWEN_2_5_VL_7B
    outer = ("architectures", "model_type", "vision_config", "torch_dtype")
    nested = {name: flat[name] for name in outer}
    inner = {name: value for name, value in flat.items() if name not in outer}
    expected = shape_of(flat, "qwen")
    assert shape_of({**nested, "text_config": inner}, "qwen") == expected
    thinker = {
        "model_type": "qwen2_5_omni_thinker",
        "text_config": inner,
        "vision_config": flat["vision_config"],
    }
    omni = {"model_type": "qwen2_5_omni", "torch_dtype": "bfloat16", "thinker_config": thinker}
    assert shape_of(omni, "omni").parameters == expected.parameters


def test_weights_of_images_are_part_of_the_sum() -> None:
    config = models.QWEN_2_5_VL_7B
    text = shape_of({name: value for name, value in config.items() if name != "vision_config"}, "qwen")
    both = shape_of(config, "qwen")
    assert both.parameters - text.parameters == pytest.approx(0.676e9, rel=0.005)
    assert both.active_parameters == text.active_parameters
    quantized = {**config, "quantization_config": {"quant_method": "awq", "bits": 4}}
    assert shape_of(quantized, "qwen").weight_bytes > 2 * (both.parameters - text.parameters)
    with pytest.raises(SettingError, match="vision_config: depth"):
        shape_of({**config, "vision_config": {"depth": 10**9, "hidden_size": 1280}}, "qwen")


def test_a_multimodal_model_around_an_unknown_text_model_is_rejected() -> None:
    with pytest.raises(SettingError, match=r"model_type: expected one of .* found 'jamba'"):
        shape_of({"model_type": "llava", "text_config": {"model_type": "jamba"}}, "config.json")
