"""Bytes per quantized weight, by a config's `quantization_config`."""

from __future__ import annotations

from typing import Any

from forebay.errors import SettingError
from forebay.planning.config_fields import Fields, shown

SCALE = 2 / 128
"""A scale of two bytes for each 128 weights."""
MAX_GROUPS = 100


def quantized_bytes(found: Fields) -> float | None:
    """Bytes per quantized weight; None without quantization of weights.

    Of several groups of compressed-tensors the one with the most bits counts for all. Raises `SettingError`
    if the bits are out of range or missing.
    """
    config = found.get("quantization_config")
    if not isinstance(config, dict):
        return None
    if config.get("quant_method") == "compressed-tensors":
        bits = _bits_of_groups(found, config)
        if bits is None:
            return None
    else:
        bits = config.get("bits", config.get("w_bit"))
    if bits is None:
        named = f"{str(config.get('quant_method'))[:40]} {str(config.get('quant_algo'))[:40]}"
        bits = 4 if config.get("load_in_4bit") or "4" in named else 8
    if type(bits) is not int or not 1 <= bits <= 16:
        raise SettingError(
            f"model: {found.where}: bits of the quantization: expected 1 to 16, found {shown(bits)}"
        )
    return bits / 8 + SCALE


def only_experts(found: Fields) -> bool:
    """Whether only the experts are quantized, as in gpt-oss."""
    config = found.get("quantization_config")
    return isinstance(config, dict) and config.get("quant_method") == "mxfp4"


def _bits_of_groups(found: Fields, config: dict[str, Any]) -> Any:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not 1 <= len(groups) <= MAX_GROUPS:
        raise SettingError(
            f"model: {found.where}: quantization_config: config_groups: expected 1 to {MAX_GROUPS} groups "
            f"with the bits of the weights, found {shown(groups)}"
        )
    bits = []
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            each = weights.get("num_bits")
            if type(each) is not int:
                return each if each is not None else "nothing"
            bits.append(each)
    return max(bits, default=None)
