"""The connectors by the name that a pipeline file uses.

A new one is a folder or module and a line here, or a `feeds.feed.Feed`. May import `flink` and below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from forebay.connectors.base import Connector, SinkSettings, SourceSettings
from forebay.errors import SettingError
from forebay.fields import OneOf
from forebay.registry import Registry

CONNECTORS: Registry[Connector] = Registry(
    what="connector",
    group="forebay.connectors",
    own={
        "jsonl": "forebay.connectors.files.settings:JSONL",
        "csv": "forebay.connectors.files.settings:CSV",
        "text": "forebay.connectors.files.settings:TEXT",
        "generator": "forebay.connectors.generator.settings:GENERATOR",
        "sse": "forebay.connectors.feeds.settings:SSE",
        "websocket": "forebay.connectors.feeds.settings:WEBSOCKET",
        "kafka": "forebay.connectors.kafka.settings:KAFKA",
        "dead_letters": "forebay.connectors.files.settings:DEAD_LETTERS",
        "stdout": "forebay.connectors.files.settings:STDOUT",
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
    return [*own, *(name for name in CONNECTORS.names() if name not in CONNECTORS.own)]


def own_sources() -> dict[str, type[SourceSettings]]:
    found = {name: CONNECTORS.own_one(name).source for name in CONNECTORS.own}
    return {name: source for name, source in found.items() if source is not None}


def own_sinks(*, dead_letters: bool = False) -> dict[str, type[SinkSettings]]:
    found = {name: CONNECTORS.own_one(name).sink for name in CONNECTORS.own}
    return {
        name: sink
        for name, sink in found.items()
        if sink is not None and (sink.takes_dead_letters or not dead_letters)
    }


def find_source(name: str) -> type[SourceSettings] | None:
    """None if the name is unknown. Raises `SettingError` if a package lacks such a source."""
    found = CONNECTORS.find(name)
    if found is not None and found.source is None and name not in CONNECTORS.own:
        raise _lacks(name, "source")
    return None if found is None else found.source


def find_sink(name: str) -> type[SinkSettings] | None:
    """Like `find_source`."""
    found = CONNECTORS.find(name)
    if found is not None and found.sink is None and name not in CONNECTORS.own:
        raise _lacks(name, "sink")
    return None if found is None else found.sink


def find_dead_letter_sink(name: str) -> type[SinkSettings] | None:
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
