"""Prints how vLLM itself sizes models; runs in the engine's Python."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}

import torch
from vllm.config import set_current_vllm_config
from vllm.config.model import _get_and_verify_max_len
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils


def sizes(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Parameters, bytes of KV cache per request, and its maximum number of tokens."""
    (folder / "config.json").write_text(json.dumps(case["config"]))
    settings = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=case["context"],
        max_num_batched_tokens=case["step_tokens"],
        enforce_eager=True,
        load_format="dummy",
        disable_hybrid_kv_cache_manager=False,
        # Otherwise it depends on the processor.
        mamba_ssm_cache_dtype="float32",
    ).create_engine_config()
    with set_current_vllm_config(settings):
        if not torch.distributed.is_initialized():
            store = f"file://{folder}/store"
            init_distributed_environment(1, 0, store, 0, backend="gloo")
            ensure_model_parallel_initialized(1, 1)
        with torch.device("meta"):
            model = initialize_model(vllm_config=settings)
        current_platform.update_block_size_for_backend(settings)
        settings.cache_config.kv_cache_layout = "LBNHC"
        layers = settings.compilation_config.static_forward_context
        specs = {
            name: layer.get_kv_cache_spec(settings)
            for name, layer in layers.items()
            # Layers that read the cache of another are left out, as vLLM's workers do.
            if isinstance(layer, AttentionLayerBase)
            and getattr(layer, "kv_sharing_target_layer_name", None) is None
        }
        groups = kv_cache_utils.get_kv_cache_groups(settings, specs)
        request_bytes = kv_cache_utils._max_memory_usage_bytes_from_groups(settings, groups)
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "request_bytes": request_bytes,
        "max_context": longest(settings.model_config),
    }


def longest(model: Any) -> int:
    """Maximum tokens of a request if no number is given."""
    return _get_and_verify_max_len(
        model.hf_config,
        model.model_arch_config,
        tokenizer_config=None,
        max_model_len=None,
        disable_sliding_window=False,
        sliding_window=None,
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps([sizes(case, Path(folder)) for case in json.load(sys.stdin)]))


main()
