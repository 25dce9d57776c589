"""The fields of a model's `config.json`, each checked against a range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.errors import SettingError

MAX_NUMBER = 100_000_000
MAX_LAYERS = 2000
TYPE_BYTES = {
    "float32": 4.0,
    "float": 4.0,
    "float16": 2.0,
    "half": 2.0,
    "bfloat16": 2.0,
    "float8_e4m3fn": 1.0,
}
TYPE_ALIASES = {"fp8": "float8_e4m3fn", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


class Fields:
    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def number(self, name: str, default: int | None = None, most: int = MAX_NUMBER) -> int:
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        least = 0 if default == 0 else 1
        if type(value) is not int or not least <= value <= most:
            raise SettingError(
                f"model: {self.where}: {name}: expected a whole number from {least} to {most}, found "
                f"{shown(value)}"
            )
        return value

    def first(self, names: tuple[str, ...], default: int) -> int:
        """The first of these fields that is present; `default` for 0, or if none is.

        Of a list with one number for each layer, the largest counts.
        """
        for name in names:
            value = self._values.get(name)
            if isinstance(value, list) and value:
                if len(value) > MAX_LAYERS or any(
                    type(one) is not int or not 0 <= one <= MAX_NUMBER for one in value
                ):
                    raise self.wrong(name, f"at most {MAX_LAYERS} whole numbers from 0 to {MAX_NUMBER}")
                return max(value) or default
            if value is not None and value != []:
                return self.number(name, 0) or default
        return default

    def flag(self, name: str) -> bool:
        return self._values.get(name) is True

    def stored_type_bytes(self) -> float:
        named = self._values.get("dtype") or self._values.get("torch_dtype") or "bfloat16"
        return type_bytes_of(named, f"model: {self.where}: dtype")

    def type_bytes(self) -> float:
        """Bytes per number in memory: vLLM loads 32-bit models with 16 bits."""
        return min(self.stored_type_bytes(), 2.0)

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def wrong(self, name: str, expected: str) -> SettingError:
        return SettingError(
            f"model: {self.where}: {name}: expected {expected}, found {shown(self._values.get(name))}"
        )


def type_bytes_of(named: object, called: str) -> float:
    name = str(named)[:40].removeprefix("torch.")
    name = TYPE_ALIASES.get(name, name)
    if name not in TYPE_BYTES:
        known = ", ".join((*TYPE_ALIASES, *TYPE_BYTES))
        raise SettingError(f"{called}: expected one of {known}; found {name!r}")
    return TYPE_BYTES[name]


def shown(value: object) -> str:
    return (
        "nothing" if value is None else repr(value)[:60] if not isinstance(value, list | dict) else "a list"
    )
