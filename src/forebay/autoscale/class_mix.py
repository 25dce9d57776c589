"""Which share of a stream is of which class of service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter

from forebay.autoscale.base import Amount, ServiceClass, Tokens

LAST = 2000.0
"""The shares are those of about so many of the last requests."""
_MEMORY: TypeAdapter[dict[str, tuple[Amount, Amount, Amount]]] = TypeAdapter(
    dict[str, tuple[Amount, Amount, Amount]]
)


class ClassMix:
    """Shares of requests and tokens among `classes`, as those of the last ones that subtasks took in; before
    they have told of any, all is of the first class. So is what is of a class that is not among them."""

    def __init__(self, classes: Sequence[ServiceClass]) -> None:
        self._classes = tuple(classes)
        self._seen: dict[str, Tokens] = {}

    def add(self, by_class: Mapping[str, Tokens]) -> None:
        """These were taken in."""
        for name, tokens in by_class.items():
            self._seen[name] = self._seen.get(name, Tokens()) + tokens
        count = sum(tokens.requests for tokens in self._seen.values())
        if count > LAST:
            self._seen = {name: tokens.times(LAST / count) for name, tokens in self._seen.items()}

    def split(self, tokens: Tokens) -> list[tuple[ServiceClass, Tokens]]:
        """`tokens` shared out among all classes; their sum is `tokens`, up to rounding."""
        return _shared_out(tokens, self._seen, self._classes)

    def split_as(self, tokens: Tokens, by_class: Mapping[str, Tokens]) -> list[tuple[ServiceClass, Tokens]]:
        """The same, in the shares of `by_class`; as `split` where that is nothing."""
        known = any(each.requests > 0 for each in by_class.values())
        return _shared_out(tokens, by_class if known else self._seen, self._classes)

    def remembers(self) -> Mapping[str, object]:
        """What outlives a restart."""
        return {name: (each.requests, each.prompt, each.output) for name, each in self._seen.items()}

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on with what was remembered. Raises `ValueError` where it is not that, and is then as it was."""
        self._seen = {name: Tokens(*each) for name, each in _MEMORY.validate_python(memory).items()}


def _shared_out(
    tokens: Tokens, by_class: Mapping[str, Tokens], classes: Sequence[ServiceClass]
) -> list[tuple[ServiceClass, Tokens]]:
    """`tokens` among `classes` in the shares of `by_class`: requests, prompts and answers each in their own.
    What is of none of them goes to the first."""
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
