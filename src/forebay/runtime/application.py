"""A pipeline as the program of a Flink cluster that was made for it (application mode): what Flink's
PythonDriver runs, where a platform such as Kubernetes starts, resumes and watches the job.

`python -m forebay.runtime.application FILE --state-id ID`, by Flink only. The cluster's configuration says
where checkpoints go and what is restored; the pipeline file says all else. It is run again whenever the job
manager starts anew.
"""

from __future__ import annotations

import argparse
import logging
import sys
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from urllib.parse import urlsplit

from forebay.config import load_spec
from forebay.config.spec import PipelineSpec
from forebay.connectors.kafka.settings import KafkaSource
from forebay.errors import ForebayError, SettingError
from forebay.flink.environment import FlinkConfig, Restart, application_environment, own_rest
from forebay.flink.job import submit
from forebay.runtime.attempt import flink_value
from forebay.runtime.inference import served_by
from forebay.runtime.job_graph import build
from forebay.runtime.kafka_offsets import GroupOffsets, settlement
from forebay.runtime.kafka_start import begin, read_before
from forebay.runtime.preflight import await_brokers, check_secrets
from forebay.runtime.queue_page import queue_told
from forebay.runtime.watch import lag_watched
from forebay.untrusted_text import PlainFormatter

LOG = logging.getLogger("forebay")


def run_application(spec: PipelineSpec, state_id: str, queue_url: str | None = None) -> None:
    """Start the job of `spec` in the Flink that runs this program.

    `state_id` names the pipeline's state, and stays as long as that does: transactions are named after it.
    `queue_url` is where the job's subtasks reach this process: at its port, they hear what waits in the
    topics of a pipeline that scales. There, this commits the offsets of the source's group, as `GroupOffsets`
    has them, blocks until the job has ended, and raises nothing for how: that is for Flink to say. Elsewhere
    it returns once Flink has taken the job. Raises `SettingError` and `PipelineFailed` as a run does before
    it starts.
    """

    def say(words: str, waited_s: float) -> None:
        LOG.info("%s (%.0f s)", words, waited_s)

    port = None
    if queue_url is not None and spec.scaling is not None and isinstance(spec.source, KafkaSource):
        port = _port_of(queue_url)
    check_secrets(spec, here=True)
    env = application_environment(
        FlinkConfig(
            parallelism=spec.parallelism,
            checkpoint_interval_s=spec.checkpoint.interval_s,
            restart=Restart(delay_s=1.0, attempts=None, max_delay_s=30.0),
            options={
                "execution.checkpointing.timeout": f"{round(spec.checkpoint.timeout_s * 1000)} ms",
                **{key: flink_value(value) for key, value in spec.flink.items()},
            },
        )
    )
    await_brokers(spec, say)
    served = served_by(spec, (), say)
    scaling = served.scaling
    if scaling is not None and port is not None:
        scaling = replace(scaling, queue_url=queue_url)
    read = read_before(spec)
    # Only Flink can find out whether there is a checkpoint, and so a gap.
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
    # Whether there is a checkpoint, Flink knows. If there is, the job goes on near what was read.
    offsets = GroupOffsets(spec, topics.ends, job.checkpoints, settlement(spec, cluster=True))
    with (
        closing(offsets),
        lag_watched(spec, job, restored=True, before=read) as waiting,
        queue_told(job, waiting, port, one_each=spec.application is None, looked=offsets),
    ):
        cause = job.await_end()
    if cause:
        # Flink takes its status from the job: a failure of this program would only be one more cause.
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
    """Run the pipeline of the command line."""
    parser = argparse.ArgumentParser(prog="forebay.runtime.application", description=__doc__)
    parser.add_argument("file", help="The pipeline file.")
    parser.add_argument("--state-id", required=True, help="Name of the pipeline's state.")
    parser.add_argument("--queue-url", help="Where subtasks ask this process what waits in topics.")
    options = parser.parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        run_application(load_spec(options.file), options.state_id, options.queue_url)
    except ForebayError as error:
        # Flink logs what is printed last.
        LOG.error("%s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
