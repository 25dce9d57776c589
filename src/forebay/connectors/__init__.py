"""The connectors, by the names that a pipeline file has for them. A new one is a folder or a module, and a
line here.

A source is a function `(env, config) -> DataStream` of encoded records (`forebay.codec`: `Event`, or
`DeadLetter` for what cannot be read), a sink a function `(stream, config) -> None` of JSON lines; a config is
a small frozen dataclass. A protocol that has a Python client and a cursor is a `feeds.feed.Feed`, which
`feeds.source` makes a source of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from forebay.connectors.base import Connector, SinkSettings, SourceSettings
from forebay.documents.fields import OneOf
from forebay.errors import SettingError
from forebay.registry import Registry

CONNECTORS: Registry[Connector] = Registry(
    what="connector",
    group="forebay.connectors",
    own={
        "jsonl": "forebay.connectors.files.settings:JSONL",
        "csv": "forebay.connectors.files.settings:CSV",
        "generator": "forebay.connectors.generator.settings:GENERATOR",
        "sse": "forebay.connectors.feeds.settings:SSE",
        "websocket": "forebay.connectors.feeds.settings:WEBSOCKET",
        "kafka": "forebay.connectors.kafka.settings:KAFKA",
        "dead_letters": "forebay.connectors.files.settings:DEAD_LETTERS",
        "stdout": "forebay.connectors.stdout:STDOUT",
    },
    expected="a forebay.extend.Connector with a source, a sink or both",
    fits=lambda value: (
        isinstance(value, Connector)
        and (value.source or value.sink) is not None
        and _is(value.source, SourceSettings)
        and _is(value.sink, SinkSettings)
    ),
)


def _is(given: object, base: type) -> bool:
    return given is None or (isinstance(given, type) and issubclass(given, base))


def _names(own: Mapping[str, object]) -> list[str]:
    """Names of this side of Forebay's own connectors, and of all of other packages: which side those have is
    not known before they are loaded."""
    return [*own, *(name for name in CONNECTORS.names() if name not in CONNECTORS.own)]


def own_sources() -> dict[str, type[SourceSettings]]:
    """Forebay's own sources by name."""
    found = {name: CONNECTORS.own_one(name).source for name in CONNECTORS.own}
    return {name: source for name, source in found.items() if source is not None}


def own_sinks(*, dead_letters: bool = False) -> dict[str, type[SinkSettings]]:
    """Forebay's own sinks by name, or those of them that take dead letters."""
    found = {name: CONNECTORS.own_one(name).sink for name in CONNECTORS.own}
    return {
        name: sink
        for name, sink in found.items()
        if sink is not None and (sink.takes_dead_letters or not dead_letters)
    }


def find_source(name: str) -> type[SourceSettings] | None:
    """The source of this name; None for a name that there is not. Raises `SettingError` where a package's
    connector of this name cannot be loaded, or has no source."""
    found = CONNECTORS.find(name)
    if found is not None and found.source is None and name not in CONNECTORS.own:
        raise _lacks(name, "source")
    return None if found is None else found.source


def find_sink(name: str) -> type[SinkSettings] | None:
    """The sink of this name, like `find_source`."""
    found = CONNECTORS.find(name)
    if found is not None and found.sink is None and name not in CONNECTORS.own:
        raise _lacks(name, "sink")
    return None if found is None else found.sink


def find_dead_letter_sink(name: str) -> type[SinkSettings] | None:
    """The sink of this name, if it takes dead letters, like `find_source`."""
    found = find_sink(name)
    if found is not None and not found.takes_dead_letters:
        if name not in CONNECTORS.own:
            raise _lacks(name, "sink for dead letters")
        return None
    return found


def _lacks(name: str, what: str) -> SettingError:
    return SettingError(
        f"the connector {name!r} of the package {CONNECTORS.origin(name)} has no {what}; name another"
    )


Source = Annotated[
    SourceSettings, OneOf(SourceSettings, lambda: _names(own_sources()), find_source, own_sources)
]
Sink = Annotated[SinkSettings, OneOf(SinkSettings, lambda: _names(own_sinks()), find_sink, own_sinks)]
DeadLetterSink = Annotated[
    SinkSettings,
    OneOf(
        SinkSettings,
        lambda: _names(own_sinks(dead_letters=True)),
        find_dead_letter_sink,
        lambda: own_sinks(dead_letters=True),
    ),
]
