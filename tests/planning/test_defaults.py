"""Missing fields have the defaults of the model's type."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.planning.defaults import CONFIG_FIELDS, known_defaults, text_config, vision_config
from forebay.planning.layers import KINDS
from forebay.planning.model_config import shape_of


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


def test_computed_values_are_not_defaults() -> None:
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


TEXT_MODELS = {
    "apertus": 6_979_596_352,
    "arcee": 4_022_766_080,
    "bloom": 16_156_544,
    "cohere": 34_980_831_232,
    "cohere2": 34_980_831_232,
    "cohere2_moe": 190_004_928_512,
    "cwm": 32_581_097_472,
    "deepseek_v2": 38_612_307_968,
    "deepseek_v3": 671_026_404_352,
    "deepseek_v32": 671_877_929_216,
    "ernie4_5": 360_748_032,
    "ernie4_5_moe": 21_825_437_888,
    "exaone4": 9_429_069_824,
    "exaone_moe": 28_550_639_616,
    "falcon": 6_921_720_704,
    "flex_olmo": 33_270_665_216,
    "gemma": 8_537_680_896,
    "gemma2": 2_614_341_888,
    "gemma3_text": 2_628_658_432,
    "gemma4_text": 5_077_177_856,
    "glm": 9_399_951_360,
    "glm4": 9_400_279_040,
    "glm4_moe": 103_481_200_640,
    "glm4_moe_lite": 29_943_390_976,
    "glm_moe_dsa": 743_911_199_232,
    "gpt2": 124_439_808,
    "gpt_bigcode": 111_446_784,
    "gpt_neox": 20_554_567_680,
    "gpt_oss": 116_829_156_672,
    "gptj": 6_050_882_784,
    "granite": 6_738_415_616,
    "granite_swa": 2_144_463_840,
    "granitemoe": 37_039_116_288,
    "granitemoe_swa": 37_039_117_312,
    "granitemoeshared": 37_039_116_288,
    "hy_v3": 295_033_528_320,
    "hyperclovax": 6_738_677_760,
    "jais2": 8_090_401_280,
    "llama": 6_738_415_616,
    "llama4_text": 107_769_861_120,
    "mellum": 12_149_923_072,
    "minimax_m2": 228_689_748_992,
    "ministral3": 8_489_553_920,
    "mistral": 7_241_732_096,
    "mixtral": 46_702_792_704,
    "olmo": 6_888_095_744,
    "olmo2": 6_888_624_128,
    "olmo3": 6_888_624_128,
    "olmoe": 13_361_612_800,
    "opt": 125_239_296,
    "persimmon": 9_397_175_296,
    "phi": 1_418_270_720,
    "phi3": 3_821_079_552,
    "qwen2": 12_049_846_272,
    "qwen2_moe": 14_315_784_192,
    "qwen3": 12_049_461_248,
    "qwen3_5_moe_text": 34_660_610_688,
    "qwen3_5_text": 8_953_803_264,
    "qwen3_moe": 15_350_731_776,
    "qwen3_next": 79_674_391_296,
    "seed_oss": 28_921_040_896,
    "smollm3": 3_075_098_624,
    "stablelm": 2_795_443_200,
    "starcoder2": 3_030_371_328,
    "vaultgemma": 2_614_222_080,
}
"""Parameters of `AutoModelForCausalLM.from_config` with the default configuration, transformers 5.19."""
MULTIMODAL_MODELS = {
    "aria": 18_701_885_824,
    "exaone4_5": 12_100_938_496,
    "fuyu": 9_408_238_592,
    "gemma3": 2_723_312_896,
    "gemma4": 5_077_177_856,
    "glm4v": 10_292_777_472,
    "glm4v_moe": 104_372_866_880,
    "llama4": 107_769_861_120,
    "minicpmv4_6": 9_111_202_816,
    "minicpmv4_7": 9_111_202_816,
    "paddleocr_vl": 799_695_472,
    "qianfan_ocr": 12_387_044_352,
    "qwen2_5_vl": 75_789_228_800,
    "qwen2_vl": 73_381_962_752,
    "qwen3_vl": 12_616_410_352,
    "qwen3_vl_moe": 14_052_070_640,
    "shieldgemma2": 2_723_312_896,
}
"""The same of `AutoModelForImageTextToText`, if its default text model is the default of its type."""


@pytest.mark.parametrize("kind", TEXT_MODELS)
def test_parameters_of_text_models(kind: str) -> None:
    shape = shape_of({"model_type": kind}, kind)
    assert shape.parameters == pytest.approx(TEXT_MODELS[kind], rel=0.005)
    assert shape.active_parameters <= shape.parameters


@pytest.mark.parametrize("kind", MULTIMODAL_MODELS)
def test_parameters_of_multimodal_models(kind: str) -> None:
    config = {"model_type": kind, "text_config": {}, "vision_config": {}}
    assert shape_of(config, kind).parameters == pytest.approx(MULTIMODAL_MODELS[kind], rel=0.01)
