"""The fields of a model's `config.json`, each held to a range. The file is not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.errors import SettingError

MOST = 100_000_000
MOST_LAYERS = 2000
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
    """A config's fields, each held to a range."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def number(self, name: str, default: int | None = None, most: int = MOST) -> int:
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
        """The first of these fields that is there; `default` for 0."""
        for name in names:
            if isinstance(self._values.get(name), list):
                continue
            if self._values.get(name) is not None:
                return self.number(name, 0) or default
        return default

    def flag(self, name: str) -> bool:
        return self._values.get(name) is True

    def type_bytes(self) -> float:
        named = self._values.get("dtype") or self._values.get("torch_dtype") or "bfloat16"
        return type_bytes_of(named, f"model: {self.where}: dtype")

    def get(self, name: str) -> Any:
        """The value as it stands; None where there is none."""
        return self._values.get(name)

    def wrong(self, name: str, expected: str) -> SettingError:
        """What to raise where a field is not as expected."""
        return SettingError(
            f"model: {self.where}: {name}: expected {expected}, found {shown(self._values.get(name))}"
        )


def type_bytes_of(named: object, called: str) -> float:
    """Bytes of a number type; `called` is what a message calls it."""
    name = str(named)[:40].removeprefix("torch.")
    name = TYPE_ALIASES.get(name, name)
    if name not in TYPE_BYTES:
        known = ", ".join((*TYPE_ALIASES, *TYPE_BYTES))
        raise SettingError(f"{called}: expected one of {known}; found {name!r}")
    return TYPE_BYTES[name]


def shown(value: object) -> str:
    """A value as a message may show it."""
    return (
        "nothing" if value is None else repr(value)[:60] if not isinstance(value, list | dict) else "a list"
    )
