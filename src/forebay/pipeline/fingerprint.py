"""What a checkpoint requires of the next run: settings that its state depends on, and Kafka clusters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from forebay.clients.s3.location import Location
from forebay.connectors.kafka.settings import KafkaSource
from forebay.errors import SettingError
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import RunState


def check_name(spec: PipelineSpec, home: Location, state: RunState) -> None:
    name = (state.traits or {}).get("name", spec.name)
    if name != spec.name:
        raise SettingError(
            f"name: the state in {home} is that of pipeline {name!r}, found {spec.name!r}: keep the name, or "
            f"give this pipeline another checkpoint.dir"
        )


def check_fingerprint(spec: PipelineSpec, state: RunState) -> None:
    if state.traits is None:
        return
    for key, before, now in changed_traits(spec, state.traits):
        raise SettingError(
            f"{key}: expected {_shown(before)}, as in the checkpoint, found {_shown(now)}; it cannot be "
            f"resumed with this (--fresh starts over)"
        )
    first, last = state.traits.get("shards"), state.settings.get("shards")
    if first != last is not None and "shards" not in unfingerprinted(spec):
        raise SettingError(
            f"shards: the last run had {last}, and calls in flight are where that number put them: run it "
            f"with shards: {first} and without ordering: key and budget until those are answered, then stop "
            f"it and add them (or start over with --fresh)"
        )


def changed_traits(spec: PipelineSpec, before: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The keys that must not change and have changed, with both values; a key that one lacks has not."""
    return [
        (key, before[key], value)
        for key, value in fingerprint(spec).items()
        if key in before and value != before[key] and key not in unfingerprinted(spec)
    ]


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def fingerprint(spec: PipelineSpec) -> dict[str, Any]:
    """Settings that must not change when a job resumes, and `unfingerprinted` ones.

    One that only some pipelines depend on is missing for others.
    """
    application = {} if spec.application is None else spec.application.fingerprint()
    state_by_key = spec.application is not None and spec.application.state_by_key
    return {
        "name": spec.name,
        **({"key": spec.key} if state_by_key or spec.ordering == "key" or spec.budget is not None else {}),
        "ordering": spec.ordering,
        "shards": spec.shards,
        "event_time": "set" if spec.event_time else "null",
        "source.replay": "set" if getattr(spec.source, "replay", None) else "null",
        **_below("source", spec.source.fingerprint()),
        **({"source.group": spec.source.group_of(spec.name)} if isinstance(spec.source, KafkaSource) else {}),
        "assignments.type": "null",
        **{
            name: each
            for key, sink in spec.sinks().items()
            for name, each in _below(key, sink.fingerprint()).items()
        },
        **_below("application", application),
        # Flink finds out when it reads the checkpoint, and would restart the job again and again.
        "flink.state.backend.type": spec.flink.get(
            "state.backend.type", spec.flink.get("state.backend", "hashmap")
        ),
        "application.type": "null" if spec.application is None else spec.application.type,
    }


def traits_to_record(spec: PipelineSpec, resumed: RunState) -> dict[str, Any]:
    """The number of shards stays that of the first run: Flink finds state by a uid that includes it."""
    kept = resumed.traits or {}
    return fingerprint(spec) | {key: kept[key] for key in ("shards",) if key in kept}


def _below(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """URLs are replaced by their hashes because they may contain secrets."""
    return {f"{key}.{name}": _hash(value) if name == "url" else value for name, value in values.items()}


def _hash(url: object) -> str:
    return "one with the hash " + hashlib.blake2b(str(url).encode(), digest_size=8).hexdigest()


def unfingerprinted(spec: PipelineSpec) -> set[str]:
    bound = spec.ordering == "key" or spec.application is not None or spec.budget is not None
    free = {"ordering"} if bound else {"ordering", "shards"}
    # Without labels, a job lacks the operator that holds the questions in flight.
    return free | {"application.labels"} if spec.asks_model else free


def check_same_kafka(state: RunState, kafka: Mapping[str, str]) -> None:
    """`kafka`: ids of clusters by the keys of the source and the sinks."""
    held = dict.fromkeys(state.sink_kafka, "transactions")
    before = dict(state.sink_kafka)
    if state.kafka is not None:
        held["source"], before["source"] = "offsets", state.kafka
    for key, id in before.items():
        if kafka.get(key, id) != id:
            raise SettingError(
                f"{key}.bootstrap: the checkpoint holds {held[key]} of Kafka cluster {id}, this one is "
                f"{kafka[key]}; --fresh starts over"
            )
