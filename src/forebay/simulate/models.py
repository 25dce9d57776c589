"""Engines whose speed was measured: what `forebay simulate calibrate` found, by name."""

from __future__ import annotations

from forebay.errors import SettingError
from forebay.simulate.engine import EngineModel
from forebay.simulate.step_time import StepTime

LLAMA_8B = EngineModel(
    "Llama-3.1-8B",
    StepTime(
        step_s=0.0117042,
        decode_s=3.40227e-05,
        context_s=7.57214e-08,
        prefill_s=4.65523e-05,
        attention_s=1.63644e-09,
        prefill_step_s=0.00198419,
    ),
    kv_tokens=500_000,
)
"""vLLM 0.19 on one RTX PRO 6000. The size of its KV cache is not in the measured run: 96 GB less weights and
a tenth, at 128 KiB a token."""

QWEN_32B = EngineModel(
    "Qwen3-32B",
    StepTime(
        step_s=0.0280948,
        decode_s=6.3834e-05,
        context_s=1.6492e-07,
        prefill_s=1.37680e-04,
        attention_s=1.21703e-08,
        prefill_step_s=0.0316711,
    ),
    kv_tokens=400_000,
)
"""vLLM 0.19 on two RTX PRO 6000 (tensor parallel). KV cache as above, at 256 KiB a token."""

MODELS = {"llama-8b": LLAMA_8B, "qwen-32b": QWEN_32B}


def find_model(name: str) -> EngineModel:
    """The engine of this name. Raises `SettingError` for one that there is not."""
    try:
        return MODELS[name]
    except KeyError:
        raise SettingError(f"engine: expected one of {', '.join(MODELS)}; found {name!r}") from None
