"""The share of each class of service in a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter

from forebay.fleet.autoscale.base import Amount, ServiceClass, Tokens

LAST = 2000.0
"""The shares are those of about this many recent requests."""
_MEMORY: TypeAdapter[dict[str, tuple[Amount, Amount, Amount]]] = TypeAdapter(
    dict[str, tuple[Amount, Amount, Amount]]
)


class ClassMix:
    """Shares of recent requests and tokens among `classes`. Until there are any, and for unknown classes, the
    first class counts."""

    def __init__(self, classes: Sequence[ServiceClass]) -> None:
        self._classes = tuple(classes)
        self._seen: dict[str, Tokens] = {}

    def add(self, by_class: Mapping[str, Tokens]) -> None:
        for name, tokens in by_class.items():
            self._seen[name] = self._seen.get(name, Tokens()) + tokens
        count = sum(tokens.requests for tokens in self._seen.values())
        if count > LAST:
            self._seen = {name: tokens.times(LAST / count) for name, tokens in self._seen.items()}

    def split(self, tokens: Tokens) -> list[tuple[ServiceClass, Tokens]]:
        """`tokens` divided among all classes; the sum is `tokens`, up to rounding."""
        return _shared_out(tokens, self._seen, self._classes)

    def split_as(self, tokens: Tokens, by_class: Mapping[str, Tokens]) -> list[tuple[ServiceClass, Tokens]]:
        """The same, in the shares of `by_class`; like `split` if that is empty."""
        known = any(each.requests > 0 for each in by_class.values())
        return _shared_out(tokens, by_class if known else self._seen, self._classes)

    def remembers(self) -> Mapping[str, object]:
        return {name: (each.requests, each.prompt, each.output) for name, each in self._seen.items()}

    def recall(self, memory: Mapping[str, object]) -> None:
        """Raises `ValueError` for an unusable memory, and is then unchanged."""
        self._seen = {name: Tokens(*each) for name, each in _MEMORY.validate_python(memory).items()}


def _shared_out(
    tokens: Tokens, by_class: Mapping[str, Tokens], classes: Sequence[ServiceClass]
) -> list[tuple[ServiceClass, Tokens]]:
    """Requests, prompts and answers each in their own shares. Unknown classes count as the first."""
    first, *others = classes
    total = sum(by_class.values(), Tokens())
    parts, rest = [], tokens
    for each in others:
        seen = by_class.get(each.name, Tokens())
        part = Tokens(
            tokens.requests * _share(seen.requests, total.requests),
            tokens.prompt * _share(seen.prompt, total.prompt),
            tokens.output * _share(seen.output, total.output),
        )
        parts.append((each, part))
        rest += part.times(-1)
    left = Tokens(max(rest.requests, 0.0), max(rest.prompt, 0.0), max(rest.output, 0.0))
    return [(first, left), *parts]


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
