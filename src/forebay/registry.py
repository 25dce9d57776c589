"""Registry of connectors, applications and policies: Forebay's own and those of packages.

Listing names imports nothing; a broken package only affects those who name it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from forebay.errors import SettingError

if TYPE_CHECKING:
    # Slower to import than everything else that is needed to list names.
    from importlib.metadata import EntryPoint

T = TypeVar("T")
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
MAX_DETAIL_CHARS = 500


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Things of one kind, by name.

    `what` is the kind, for messages, and `group` the entry point group for packages. `own` are Forebay's, as
    values or `module:attribute`; packages cannot override them. `fits` checks a loaded entry point, and
    `expected` describes that for messages.
    """

    what: str
    group: str
    own: Mapping[str, str | T]
    expected: str
    fits: Callable[[Any], bool]

    def names(self) -> list[str]:
        return [*self.own, *sorted(self._others())]

    def find(self, name: str) -> T | None:
        """The thing called `name`, or None.

        Raises `SettingError` with the package if it cannot be loaded or is something else, or if two packages
        offer the name.
        """
        if name in self.own:
            return self.own_one(name)
        offers = self._others().get(name, [])
        if len(offers) > 1:
            packages = " and ".join(sorted(package_of(offer) for offer in offers))
            raise SettingError(
                f"the {self.what} {name!r} is offered by two packages, {packages}: uninstall one of them"
            )
        return self._loaded(offers[0]) if offers else None

    def own_one(self, name: str) -> T:
        found = self.own[name]
        if not isinstance(found, str):
            return found
        module, _, attribute = found.partition(":")
        loaded: T = getattr(import_module(module), attribute)
        return loaded

    def origin(self, name: str) -> str | None:
        offers = [] if name in self.own else self._others().get(name, [])
        return package_of(offers[0]) if offers else None

    def note(self) -> str:
        """A sentence about names of other packages, or an empty text. Loads none of them."""
        named = [
            f"{name} ({' and '.join(package_of(offer) for offer in offers)})"
            for name, offers in sorted(self._others().items())
        ]
        refused = [f"{offer.name[:60]!r} ({package_of(offer)})" for offer in self._refused()]
        parts = [f"From installed packages: {', '.join(named)}."] if named else []
        if refused:
            parts.append(f"Ignored, because the name is taken or not allowed: {', '.join(refused)}.")
        return " ".join(parts)

    def _others(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for offer in self._offers():
            if self._allowed(offer):
                found.setdefault(offer.name, []).append(offer)
        return found

    def _refused(self) -> list[EntryPoint]:
        return [offer for offer in self._offers() if not self._allowed(offer)]

    def _allowed(self, offer: EntryPoint) -> bool:
        return offer.name not in self.own and NAME.fullmatch(offer.name) is not None

    def _offers(self) -> list[EntryPoint]:
        from importlib.metadata import entry_points

        return list(entry_points(group=self.group))

    def _loaded(self, offer: EntryPoint) -> T:
        called = f"the {self.what} {offer.name!r} of the package {package_of(offer)}"
        try:
            value = offer.load()
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"[:MAX_DETAIL_CHARS]
            raise SettingError(
                f"{called} cannot be loaded from {offer.value}: {why}; fix or uninstall the package"
            ) from error
        if not self.fits(value):
            raise SettingError(
                f"{called}: expected {offer.value} to be {self.expected}, found {described(value)}; "
                f"fix the entry point in group {self.group!r}"
            )
        loaded: T = value
        return loaded


def package_of(offer: EntryPoint) -> str:
    return "that is unknown" if offer.dist is None else f"{offer.dist.name} {offer.dist.version}"


def described(value: object) -> str:
    return (
        f"the class {value.__name__}"
        if isinstance(value, type)
        else f"a value of type {type(value).__name__}"
    )
