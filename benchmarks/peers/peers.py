"""The peers, in the order of the tables."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.base import Peer
from forebay.connectors.jars import KAFKA
from forebay.errors import SettingError

OPENAI_JAR = "flink-model-openai-2.3.0.jar"
WRONG_ROWS = "not measured: it gives events the answers of others"
FLINK_DOCS = "https://nightlies.apache.org/flink/flink-docs-stable/docs"
ROW_BUNDLES = {"bundle_ms": 1000, "bundle_size": 1000}
"""Flink's own defaults except the size. Of 10, 100 and 1000 ms the best at 100 events/s: each bundle ends by
waiting for its slowest call, so the fewer the better."""


def _of_flink(
    name: str, title: str, program: str, docs: str, *packages: str, jars: tuple[str, ...] = (), **more: Any
) -> Peer:
    return Peer(
        name,
        title,
        program,
        docs=f"{FLINK_DOCS}/{docs}/",
        packages=("apache-flink", *packages),
        checkpoints="flink",
        jars=(KAFKA.name, *jars),
        **more,
    )


PEERS = (
    Peer(
        "forebay",
        "Forebay",
        "forebay_job.py",
        docs="docs/python.md",
        packages=("forebay", "apache-flink"),
        checkpoints="forebay",
    ),
    _of_flink(
        *("async_function", "PyFlink AsyncFunction", "async_function.py"),
        *("dev/python/datastream/operators/asyncio", "aiohttp"),
        options=ROW_BUNDLES,
    ),
    _of_flink(
        *("async_scalar_function", "PyFlink AsyncScalarFunction", "async_scalar_function.py"),
        *("dev/table/functions/udfs", "aiohttp"),
        options={**ROW_BUNDLES, "copy_rows": False},
        limits=dict.fromkeys(("vllm", "refusals", "kill"), WRONG_ROWS),
    ),
    _of_flink(
        *("async_scalar_function_mended", "AsyncScalarFunction, rows copied", "async_scalar_function.py"),
        *("dev/table/functions/udfs", "aiohttp"),
        options={**ROW_BUNDLES, "copy_rows": True},
    ),
    *(
        _of_flink(
            name,
            title,
            "ml_predict.py",
            "connectors/models/openai",
            jars=(OPENAI_JAR,),
            options={"models": models},
        )
        for name, title, models in (
            ("ml_predict", "Flink SQL ML_PREDICT", 1),
            ("ml_predict_20", "ML_PREDICT over 20 models", 20),
        )
    ),
    Peer(
        "flink_agents",
        "Flink Agents",
        "flink_agents_job.py",
        docs="https://nightlies.apache.org/flink/flink-agents-docs-release-0.2/",
        packages=("flink-agents", "apache-flink", "openai"),
        requirements="agents.txt",
        checkpoints="flink",
        # PyFlink has a bundle before the agent and one after it: short bundles cost no calls here.
        options={"bundle_ms": 10, "mode": "process", "max_retries": 100},
        jars=(KAFKA.name,),
    ),
    Peer(
        "quix",
        "Quix Streams, consumer by hand",
        "quix_consumer.py",
        docs="https://quix.io/docs/quix-streams/api-reference/application.html",
        packages=("quixstreams", "confluent-kafka", "aiohttp"),
        requirements="quix.txt",
    ),
    Peer(
        "pathway",
        "Pathway",
        "pathway_table.py",
        docs="https://pathway.com/developers/user-guide/data-transformation/user-defined-functions/",
        packages=("pathway", "aiohttp"),
        requirements="pathway.txt",
        options={"autocommit_ms": 20},
    ),
    Peer(
        "beam",
        "Beam RunInference",
        "beam_inference.py",
        docs="https://beam.apache.org/documentation/ml/about-ml/",
        packages=("apache-beam", "aiohttp", "confluent-kafka"),
        requirements="beam.txt",
        # The fallback of DirectRunner if Prism, its preference, cannot be fetched from GitHub.
        options={
            "runner": "apache_beam.runners.portability.fn_api_runner.FnApiRunner",
            "poll_s": 0.02,
            "num_retries": 20,
            "throttle_delay_secs": 1,
        },
    ),
    Peer(
        "ray",
        "Ray Data LLM processor",
        "ray_batches.py",
        docs="https://docs.ray.io/en/latest/data/working-with-llms.html",
        packages=("ray", "aiohttp", "confluent-kafka"),
        requirements="ray.txt",
        options={"cpus": 16, "batch_size": 1, "concurrency": 8, "max_retries": 10},
    ),
)


def peers_named(names: list[str] | None) -> tuple[Peer, ...]:
    known = {peer.name for peer in PEERS}
    for name in names or ():
        if name not in known:
            raise SettingError(f"--peer: expected one of {', '.join(sorted(known))}, found {name!r}")
    return tuple(peer for peer in PEERS if not names or peer.name in names)
