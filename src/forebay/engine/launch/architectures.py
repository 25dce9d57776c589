"""Models of known architectures with random weights, for measurements: speed depends on the shape only.

vLLM generates the weights (load format `dummy`), always the same ones. Vocabularies have the size of the
default model's tokenizer, so that every token has a text.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from forebay.engine.launch.environment import default_model
from forebay.errors import SettingError, SetupError
from forebay.files import locked, read_stamp, write_stamp
from forebay.settings import Settings

PREFIX = "random:"
RANDOM_WEIGHTS = ("--load-format", "dummy")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
STAMP = "forebay-ready.json"
RECIPE = 1


@dataclass(frozen=True, slots=True)
class Architecture:
    """`about`: what is special about it; `parameters_m`: weights in millions; `config`: its `config.json`
    beyond `SHARED`.
    """

    about: str
    parameters_m: float
    config: Mapping[str, Any]


SHARED: Mapping[str, Any] = {
    "vocab_size": 49152,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "dtype": "bfloat16",
}

ARCHITECTURES: Mapping[str, Architecture] = {
    "opt-125m": Architecture(
        "OPT-125m's shape: a key and a value for each of 12 heads, learned positions",
        124.4,
        {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "activation_function": "relu",
            "hidden_size": 768,
            "word_embed_proj_dim": 768,
            "ffn_dim": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 2048,
            "do_layer_norm_before": True,
            "enable_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "llama-151m": Architecture(
        "a small Llama: a key and a value for each of 12 heads, rotary positions, gated layers",
        151.0,
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "num_key_value_heads": 12,
            "head_dim": 64,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
    ),
    "mistral-142m": Architecture(
        "a small Mistral: 4 key-value heads for 12, a sliding window of 256 tokens",
        142.4,
        {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "hidden_act": "silu",
            "hidden_size": 768,
            "intermediate_size": 2560,
            "num_hidden_layers": 14,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "sliding_window": 256,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        },
    ),
    "starcoder-164m": Architecture(
        "tiny_starcoder's shape: multi-query attention, one key and one value for all 12 heads",
        164.1,
        {
            "architectures": ["GPTBigCodeForCausalLM"],
            "model_type": "gpt_bigcode",
            "activation_function": "gelu_pytorch_tanh",
            "n_embd": 768,
            "n_inner": 3072,
            "n_layer": 20,
            "n_head": 12,
            "n_positions": 8192,
            "multi_query": True,
            "layer_norm_epsilon": 1e-5,
            "scale_attn_weights": True,
        },
    ),
    "mixtral-209m": Architecture(
        "a small Mixtral: a mixture of 8 experts, of which 2 see each token; 2 key-value heads for 8",
        209.3,
        {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "hidden_act": "silu",
            "hidden_size": 512,
            "intermediate_size": 1024,
            "num_hidden_layers": 12,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        },
    ),
}


def has_random_weights(model: str) -> bool:
    return model.startswith(PREFIX)


def architecture_directory(model: str, settings: Settings) -> Path:
    """Whether or not it exists. Raises `SettingError` for an unknown name."""
    name = model.removeprefix(PREFIX)
    if name not in ARCHITECTURES:
        known = ", ".join(PREFIX + each for each in ARCHITECTURES)
        raise SettingError(f"model {model[:200]!r}: expected one of {known}")
    return settings.models / f"random-{name}"


def write_architecture(model: str, settings: Settings) -> Path:
    """Write the directory of `random:NAME` unless it exists. Atomic; the default model must be installed.

    Raises `SettingError` for an unknown name, `SetupError` if the tokenizer cannot be copied.
    """
    target = architecture_directory(model, settings)
    config = config_document(model.removeprefix(PREFIX))
    wanted = {"recipe": RECIPE, "config": config}
    with locked(settings.home / "model.lock"):
        if read_stamp(target / STAMP) == wanted:
            return target
        settings.models.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=settings.models, prefix=".making-") as scratch:
            made = Path(scratch) / target.name
            made.mkdir()
            (made / "config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
            source = default_model(settings)
            try:
                for name in TOKENIZER:
                    shutil.copyfile(source / name, made / name)
            except OSError as error:
                raise SetupError(
                    f"the tokenizer in {source} cannot be copied: {error.strerror}; `forebay setup` installs "
                    "that model"
                ) from None
            write_stamp(made / STAMP, wanted)
            shutil.rmtree(target, ignore_errors=True)
            made.rename(target)
    return target


def config_document(name: str) -> dict[str, Any]:
    return {**SHARED, **ARCHITECTURES[name].config}
