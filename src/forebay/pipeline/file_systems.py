"""The Flink file systems that the addresses in a pipeline file need, besides local files."""

from __future__ import annotations

from forebay.clients.s3.client import S3Client
from forebay.clients.s3.location import S3Path, location_of
from forebay.connectors.jars import S3, installed_jar
from forebay.pipeline.spec import PipelineSpec
from forebay.settings import Settings


def s3_places(spec: PipelineSpec) -> dict[str, S3Path]:
    named = {**spec.written(), "checkpoint.dir": spec.checkpoint.dir}
    places = {key: location_of(path) for key, path in named.items()}
    return {key: place for key, place in places.items() if isinstance(place, S3Path)}


def check_plugins(spec: PipelineSpec, settings: Settings) -> None:
    """Raise `SettingError` if a Flink file system that the pipeline needs is not installed here."""
    if s3_places(spec):
        installed_jar(S3, settings.connectors)


def file_system_options(spec: PipelineSpec) -> dict[str, str]:
    """Return Flink's options for the pipeline's file systems, without secrets: tasks find keys where they
    run.

    Raises `SettingError` and `SetupError` like `S3Client`.
    """
    place = next(iter(s3_places(spec).values()), None)
    return {} if place is None else S3Client(place.bucket).flink_options()
