"""The file systems that a pipeline needs of Flink beyond this machine's, by the addresses in its file."""

from __future__ import annotations

from forebay.config.spec import PipelineSpec
from forebay.connectors.jars import S3, installed_jar
from forebay.s3.client import S3Client
from forebay.s3.location import S3Path, location_of
from forebay.settings import Settings


def s3_places(spec: PipelineSpec) -> dict[str, S3Path]:
    """What of a pipeline lies in an object store, by the keys that name it."""
    named = {**spec.written(), "checkpoint.dir": spec.checkpoint.dir}
    places = {key: location_of(path) for key, path in named.items()}
    return {key: place for key, place in places.items() if isinstance(place, S3Path)}


def check_plugins(spec: PipelineSpec, settings: Settings) -> None:
    """Raise `SettingError` where this machine lacks a file system of Flink's that the pipeline needs, also to
    submit it to a cluster."""
    if s3_places(spec):
        installed_jar(S3, settings.connectors)


def file_system_options(spec: PipelineSpec) -> dict[str, str]:
    """What Flink's file systems are told to reach what the pipeline names; empty where it needs none. No
    secret is among it: keys are found where tasks run. Raises `SettingError` and `SetupError` like
    `S3Client`."""
    place = next(iter(s3_places(spec).values()), None)
    return {} if place is None else S3Client(place.bucket).flink_options()
