"""The program of a Flink application cluster, run by Flink's PythonDriver at each start of the job manager.

`python -m forebay.pipeline.application FILE --state-id ID`. The cluster sets checkpoint storage and what to
restore.
"""

from __future__ import annotations

import argparse
import logging
import sys
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from forebay.connectors.kafka.settings import KafkaSource
from forebay.errors import ForebayError, SettingError
from forebay.flink.environment import FlinkConfig, Restart, application_environment, own_rest
from forebay.flink.job import submit
from forebay.pipeline.attempt import flink_value
from forebay.pipeline.backlog import backlog_served, lag_watched
from forebay.pipeline.inference import served_by
from forebay.pipeline.job_graph import build
from forebay.pipeline.kafka.offsets import GroupOffsets, settlement
from forebay.pipeline.kafka.start import await_brokers, begin, read_before
from forebay.pipeline.load import load_spec
from forebay.pipeline.preflight import check_secrets
from forebay.pipeline.spec import PipelineSpec
from forebay.untrusted_text import PlainFormatter

LOG = logging.getLogger("forebay")


def run_application(spec: PipelineSpec, state_id: str, queue_url: str | None = None) -> None:
    """Start the job of `spec` in the Flink that runs this program; return once Flink has accepted it.

    `state_id` must not change while the pipeline's state exists. With a `queue_url`, a pipeline that scales
    and reads Kafka serves its subtasks the backlog there and blocks until the job ends. Raises `SettingError`
    and `PipelineFailed` before the start.
    """
    note = partial(LOG.info, "%s (%.0f s)")
    port = None
    if queue_url is not None and spec.scaling is not None and isinstance(spec.source, KafkaSource):
        port = _port_of(queue_url)
    check_secrets(spec, here=True)
    env = application_environment(
        FlinkConfig(
            parallelism=spec.parallelism,
            checkpoint_interval_s=spec.checkpoint.interval_s,
            restart=Restart(attempts=None, delay_s=0.1, max_delay_s=30.0),
            options={
                "execution.checkpointing.timeout": f"{round(spec.checkpoint.timeout_s * 1000)} ms",
                **{key: flink_value(value) for key, value in spec.flink.items()},
            },
        )
    )
    await_brokers(spec, note)
    served = served_by(spec, (), note)
    scaling = served.scaling
    if scaling is not None and port is not None:
        scaling = replace(scaling, queue_url=queue_url)
    read = read_before(spec)
    # Only Flink can see whether a checkpoint exists, and therefore whether this gap matters.
    topics = begin(spec, {}, first=not read, strict=False)
    for gap in topics.gaps:
        LOG.warning("if there is no checkpoint, records are skipped that Kafka no longer has: %s", gap)
    build(
        spec,
        env,
        replicas=served.replicas,
        model=served.model,
        scaling=scaling,
        # Files are named after it: two starts must not write the same ones.
        job=uuid.uuid4().hex,
        transactions=state_id,
        topics=topics.start,
    )
    job = submit(env, spec.name, own_rest(env))
    if port is None:
        return
    # If a checkpoint exists, which only Flink can see, the job continues near the committed offsets.
    offsets = GroupOffsets(spec, topics.ends, job.checkpoints, settlement(spec, cluster=True))
    with (
        closing(offsets),
        lag_watched(spec, job, restored=True, before=read) as waiting,
        backlog_served(job, waiting, port, one_each=spec.application is None, looked=offsets),
    ):
        cause = job.await_end()
    if cause:
        # Flink takes its status from the job: exiting with an error would only add another cause.
        LOG.error("the Flink job has not finished: %s", cause)


def _port_of(url: str) -> int:
    try:
        port = urlsplit(url).port
    except ValueError:
        port = None
    if not url.startswith("http://") or not port:
        raise SettingError(f"--queue-url: expected http://HOST:PORT, found {url[:200]!r}")
    return port


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="forebay.pipeline.application", description=__doc__)
    parser.add_argument("file", help="The pipeline file.")
    parser.add_argument("--state-id", required=True, help="Name of the pipeline's state.")
    parser.add_argument("--queue-url", help="Where subtasks read the backlog of topics from this process.")
    options = parser.parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        run_application(load_spec(options.file), options.state_id, options.queue_url)
    except ForebayError as error:
        # Flink logs the last line printed.
        LOG.error("%s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
