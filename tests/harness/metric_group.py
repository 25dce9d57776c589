"""Flink's metric groups, without Flink."""

from __future__ import annotations

from typing import Any

from forebay.flink.metric_names import read_name


class Number:
    def __init__(self) -> None:
        self.value: float = 0
        self.updates = 0

    def inc(self, n: int = 1) -> None:
        self.value += n
        self.updates += 1

    def update(self, value: float) -> None:
        self.value = value
        self.updates += 1


class Group:
    def __init__(self, name: str = "infer") -> None:
        self.name = name
        self.groups: dict[str, Group] = {}
        self.numbers: dict[str, Number] = {}

    def add_group(self, name: str, value: str | None = None) -> Group:
        name = name if value is None else f"{name}.{value}"
        return self.groups.setdefault(name, Group(f"{self.name}.{name}"))

    def counter(self, name: str) -> Number:
        return self.numbers.setdefault(name, Number())

    distribution = counter

    def all(self) -> dict[str, Number]:
        """By the names that Flink's REST service has for them."""
        found = {f"{self.name}.{name}": number for name, number in self.numbers.items()}
        for group in self.groups.values():
            found |= group.all()
        return found

    def values(self) -> dict[str, float]:
        read = {read_name(name): number.value for name, number in self.all().items()}
        return {found[1]: value for found, value in read.items() if found is not None}


class MetricsContext:
    """A runtime context that has metrics only."""

    def __init__(self) -> None:
        self.group = Group()

    def get_metrics_group(self) -> Any:
        return self.group
