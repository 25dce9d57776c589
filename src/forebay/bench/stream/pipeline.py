"""The user's pipeline, with the measurement's source and sinks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.apps.summaries.settings import SummarySpec
from forebay.bench.stream.events import DUE_US, ID
from forebay.clients.s3.location import Location, S3Path
from forebay.documents import known_paths
from forebay.errors import ForebayError
from forebay.pipeline.load import load_spec, parse_spec, set_values
from forebay.pipeline.plan import resolved
from forebay.pipeline.spec import PipelineSpec

ASKED = ("ordering", "capacity", "shards", "parallelism", "task_managers", "key", "routing")
PATIENCE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Places:
    feed_url: str
    folder: Path
    store: Location | None = None

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def letters(self) -> Path:
        return self.folder / "dead-letters"

    @property
    def state(self) -> Location:
        return self.folder / "state" if self.store is None else self.store


@contextmanager
def state_folder(state: S3Path | None, note: Callable[[str], None]) -> Iterator[S3Path | None]:
    if state is None:
        yield None
        return
    from forebay.clients.s3.client import S3Client

    home = state / f"bench-{uuid.uuid4().hex[:8]}"
    client = S3Client(home.bucket)
    client.check(home.key)
    try:
        yield home
    except BaseException:
        try:
            client.delete(home.key)
        except ForebayError as error:
            note(f"{home} stays: {error}")
        raise
    client.delete(home.key)


def read_pipeline(pipeline: Path | Mapping[str, Any], settings: Sequence[str]) -> PipelineSpec:
    """Raises `SettingError`."""
    if isinstance(pipeline, Path):
        spec = load_spec(pipeline, settings)
    else:
        document = deepcopy(dict(pipeline))
        given = set_values(document, settings, known_paths(PipelineSpec, document))
        spec = parse_spec(document, base=Path.cwd(), given=given)
    return spec


def measured_document(spec: PipelineSpec, places: Places) -> dict[str, Any]:
    """`spec` with the feed as source and files as sinks; results carry the times of their stages."""
    document = resolved(spec)
    document |= {
        "source": {
            "type": "sse",
            "url": places.feed_url,
            "time": DUE_US,
            "time_format": "unix_us",
            # No events are sent between two loads.
            "idle_timeout_s": PATIENCE_S,
        },
        "id": "{{ " + ID + " }}",
        "timeline": True,
        "sink": {"type": "jsonl", "path": str(places.results)},
        "dead_letters": {"type": "jsonl", "path": str(places.letters)},
        "assignments": None,
        "checkpoint": {**document["checkpoint"], "dir": str(places.state)},
    }
    if document.get("journal") is not None:
        # The user's own journal must neither store nor answer made-up events.
        document["journal"] = {**document["journal"], "path": str(places.folder / "journal.db")}
    return document


def asked_of(spec: PipelineSpec) -> dict[str, Any]:
    application = spec.application
    return {
        "name": spec.name,
        "application": None if application is None else application.type,
        **(_window_of(application) if isinstance(application, SummarySpec) else {}),
        **{name: getattr(spec, name) for name in ASKED},
        "checkpoint_interval_s": spec.checkpoint.interval_s,
        "event_time": spec.event_time is not None,
        "max_tokens": spec.sampling.max_tokens,
        "schema": spec.output is not None,
    }


def _window_of(application: SummarySpec) -> dict[str, Any]:
    plan = application.plan()
    found = {name: getattr(plan.windows, f"{name}_ms") / 1000 for name in SPANS[plan.windows.kind]}
    return {"window": plan.windows.kind, **{f"window_{name}_s": value for name, value in found.items()}}


SPANS = {"tumbling": ("size",), "sliding": ("size", "step"), "session": ("gap",), "rolling": ("every",)}
