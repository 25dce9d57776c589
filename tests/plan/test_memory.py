"""What fits into an accelerator."""

from __future__ import annotations

import pytest
from tests.plan.test_model_config import LLAMA

from forebay.errors import SettingError
from forebay.plan.accelerators import ACCELERATORS, GIB, find_accelerator
from forebay.plan.memory import cache_plan, plan_memory
from forebay.plan.model_config import shape_of


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


def test_a_model_that_does_not_fit_is_refused_with_a_way_out() -> None:
    with pytest.raises(SettingError, match=r"15\.0 GiB.*tensor-parallel"):
        plan_memory(shape_of(LLAMA, "llama"), find_accelerator("16GB"), 8192)


@pytest.mark.parametrize("text", ["", "h1000", "-3GB", "0GB", "nan", "1e9GB", "40TB"])
def test_an_unknown_accelerator_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="--accelerator"):
        find_accelerator(text)
