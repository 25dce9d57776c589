"""Which share of a stream is of which class of service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.autoscale.base import ServiceClass, Tokens

LAST = 50
"""The shares are those of about so many of the last requests."""


class ClassMix:
    """Shares of requests and tokens among `classes`, as subtasks told of the last ones; before they have told
    of any, all is of the first class. So is what is of a class that is not among them."""

    def __init__(self, classes: Sequence[ServiceClass]) -> None:
        self._classes = tuple(classes)
        self._seen: dict[str, Tokens] = {}

    def add(self, by_class: Mapping[str, Tokens]) -> None:
        """These have arrived."""
        fade = (1 - 1 / LAST) ** sum(tokens.requests for tokens in by_class.values())
        self._seen = {name: tokens.times(fade) for name, tokens in self._seen.items()}
        known = {each.name for each in self._classes}
        for name, tokens in by_class.items():
            of = name if name in known else self._classes[0].name
            self._seen[of] = self._seen.get(of, Tokens()) + tokens

    def split(self, tokens: Tokens) -> list[tuple[ServiceClass, Tokens]]:
        """`tokens` shared out among all classes; their sum is `tokens`, up to rounding."""
        first, *others = self._classes
        total = sum(self._seen.values(), Tokens())
        parts, rest = [], tokens
        for each in others:
            seen = self._seen.get(each.name, Tokens())
            part = Tokens(
                tokens.requests * _share(seen.requests, total.requests),
                tokens.prompt * _share(seen.prompt, total.prompt),
                tokens.output * _share(seen.output, total.output),
            )
            parts.append((each, part))
            rest += part.times(-1)
        usual = Tokens(max(rest.requests, 0.0), max(rest.prompt, 0.0), max(rest.output, 0.0))
        return [(first, usual), *parts]


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
