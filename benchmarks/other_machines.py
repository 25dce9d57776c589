"""Moves a pipeline between simulated machines: each start has an empty folder and its own home, and restores
its state from an object store."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from benchmarks.object_store import BUCKET, StoreLink, object_store
from benchmarks.places import StorePlace
from benchmarks.run_process import PipelineProcess
from forebay.clients.s3.location import S3Path, s3_path
from forebay.connectors.jars import S3, install_jar
from forebay.errors import SettingError
from forebay.settings import Settings

MOTO = "moto"


class OtherMachines:
    """The folders of one pipeline's starts, and its prefix in the store."""

    def __init__(
        self, work: Path, home: S3Path, connectors: Path, variables: Mapping[str, str], link: StoreLink | None
    ) -> None:
        self.place = StorePlace(work, home)
        self.state = f"{home}/state"
        self._work = work
        self._connectors = connectors
        self._variables = variables
        self._link = link
        self._moves = 0

    def move(self, process: PipelineProcess) -> Path:
        """Use an empty folder for the next start; returns the path for its pipeline file."""
        self._moves += 1
        folder = self._work / f"machine-{self._moves}"
        process.home = folder / "home"
        process.home.mkdir(parents=True, mode=0o700)
        # As in a container image; nothing else is there.
        (process.home / "connectors").symlink_to(self._connectors)
        process.environment = self._variables
        process.pipeline = folder / "pipeline.yaml"
        return process.pipeline

    def outage(self, kind: Literal["busy", "mute"], down_s: float) -> None:
        if self._link is None:
            raise SettingError(f"--outages: needs --state {MOTO}")
        if kind == "busy":
            self._link.busy()
        else:
            self._link.stall()
        time.sleep(down_s)
        self._link.restore()


@contextmanager
def other_machines(state: str, work: Path, settings: Settings) -> Iterator[OtherMachines]:
    """`state`: an address, or `MOTO` for a local server during the block."""
    connectors = work / "image" / "connectors"
    install_jar(S3, connectors, settings.connectors_from or str(S3.folder(settings.connectors)))
    run = f"recovery-{uuid.uuid4().hex[:8]}"
    if state != MOTO:
        yield OtherMachines(work, s3_path(state) / run, connectors, {}, None)
        return
    with object_store(work) as store:
        before = {name: os.environ.get(name) for name in store.variables}
        # This process reads the results.
        os.environ.update({**store.variables, "AWS_ENDPOINT_URL": store.direct_url})
        try:
            home = S3Path(BUCKET, run)
            yield OtherMachines(work, home, connectors, store.variables, store.link)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
