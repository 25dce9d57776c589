"""A config without any field describes the model that transformers builds from it."""

from __future__ import annotations

import pytest

from forebay.planning.model_config import shape_of

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
