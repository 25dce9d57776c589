"""The provenance of a measured pipeline."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from forebay.bench.engine_signals import fetch_version
from forebay.bench.provenance import provenance
from forebay.bench.stream.measure import StreamSession
from forebay.bench.stream.options import StreamOptions
from forebay.bench.stream.records import StreamRun
from forebay.settings import read_secret


def with_origin(run: StreamRun, session: StreamSession, options: StreamOptions) -> StreamRun:
    secret = session.spec.engine.secret()
    key = None if secret is None else read_secret(secret)
    urls = session.engines.urls
    pipeline = options.pipeline
    found = provenance(
        command=["forebay", *sys.argv[1:]],
        target=urls[0] if urls else None,
        engine_version=fetch_version(urls[0], api_key=key) if urls else None,
        processes=session.engines.processes,
        seed=options.load.seed,
        data=options.load.data,
        secrets=() if key is None else (key,),
    )
    if isinstance(pipeline, Path):
        found["pipeline"] = pipeline.name
    return replace(run, provenance=found)
