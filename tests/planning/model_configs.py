"""Published configs by name, without fields that do not affect sizes: `model_configs.MISTRAL_7B`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIGS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())
MISTRAL_7B = CONFIGS["MISTRAL_7B"]
GPT_OSS_20B = CONFIGS["GPT_OSS_20B"]
GEMMA_2_9B = CONFIGS["GEMMA_2_9B"]
GEMMA_3_4B = CONFIGS["GEMMA_3_4B"]
COMMAND_R_7B = CONFIGS["COMMAND_R_7B"]
COMMAND_R = CONFIGS["COMMAND_R"]
QWEN_2_5_VL_7B = CONFIGS["QWEN_2_5_VL_7B"]
QWEN_3_VL_8B = CONFIGS["QWEN_3_VL_8B"]
QWEN_3_NEXT_80B = CONFIGS["QWEN_3_NEXT_80B"]
DEEPSEEK_V3_2 = CONFIGS["DEEPSEEK_V3_2"]
GEMMA_4_E4B = CONFIGS["GEMMA_4_E4B"]
GEMMA_4_26B = CONFIGS["GEMMA_4_26B"]
NEMOTRON_3_NANO = CONFIGS["NEMOTRON_3_NANO"]
GRANITE_4_SMALL = CONFIGS["GRANITE_4_SMALL"]
