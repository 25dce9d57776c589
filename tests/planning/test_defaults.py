"""Missing fields have the defaults of the model's type."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.planning.defaults import CONFIG_FIELDS, known_defaults, text_config, vision_config
from forebay.planning.layers import KINDS


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_known_type_has_defaults(kind: str) -> None:
    """If one is missing: `make model-defaults`."""
    found = known_defaults()[kind]
    assert {"hidden_size", "num_hidden_layers", "vocab_size"} & set(found["defaults"])
    assert set(found["defaults"]) <= set(CONFIG_FIELDS)


def test_a_given_value_wins_even_if_it_is_null() -> None:
    assert text_config({"model_type": "mistral"})["sliding_window"] == 4096
    assert text_config({"model_type": "mistral", "sliding_window": 8})["sliding_window"] == 8
    assert text_config({"model_type": "mistral", "sliding_window": None})["sliding_window"] is None


def test_a_field_may_have_the_name_that_its_type_uses() -> None:
    found = text_config({"model_type": "gpt2", "n_embd": 1600, "n_layer": 48})
    assert (found["hidden_size"], found["num_hidden_layers"], found["num_attention_heads"]) == (1600, 48, 12)


def test_values_that_a_type_computes_are_no_defaults() -> None:
    """Llama has as many KV heads as heads unless it is given another number."""
    assert "num_key_value_heads" not in text_config({"model_type": "llama", "num_attention_heads": 7})


@pytest.mark.parametrize(
    ("config", "kind", "hidden"),
    [
        ({"model_type": "qwen2_5_vl", "hidden_size": 1}, "qwen2_5_vl_text", 1),
        ({"model_type": "qwen2_5_vl", "hidden_size": 1, "text_config": {}}, "qwen2_5_vl_text", 8192),
        (
            {"model_type": "internvl_chat", "llm_config": {"model_type": "qwen2", "hidden_size": 2}},
            "qwen2",
            2,
        ),
        (
            {"model_type": "x", "thinker_config": {"text_config": {"model_type": "qwen3_moe"}}},
            "qwen3_moe",
            2048,
        ),
        ({"text_config": "none", "model_type": "llama"}, "llama", 4096),
        ({"model_type": ["llama"], "hidden_size": 3}, ["llama"], 3),
    ],
)
def test_the_text_model_is_found(config: dict[str, Any], kind: object, hidden: int) -> None:
    found = text_config(config)
    assert (found["model_type"], found["hidden_size"]) == (kind, hidden)


def test_the_number_type_and_the_quantization_may_be_outside() -> None:
    outer = {"torch_dtype": "float16", "quantization_config": {"bits": 4}, "hidden_size": 9}
    found = text_config({**outer, "model_type": "gemma3", "text_config": {"num_hidden_layers": 3}})
    assert (found["torch_dtype"], found["quantization_config"]) == ("float16", {"bits": 4})
    assert (found["hidden_size"], found["num_hidden_layers"]) == (2304, 3)


def test_an_image_encoder_has_defaults_too() -> None:
    assert vision_config({"model_type": "qwen3_vl", "vision_config": {"depth": 3}})["hidden_size"] == 1152
    assert vision_config({"model_type": "qwen3_vl"}) == {}
