"""A local object store: moto's S3 server, in memory and in its own process, behind a link that can be cut,
stalled, or answer in its place."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from benchmarks.drill.link import PIECE_BYTES, Link
from benchmarks.places import FilesPlace
from benchmarks.run_process import PipelineProcess
from forebay.clients.s3.location import S3Path, s3_path
from forebay.connectors.jars import S3, install_jar
from forebay.errors import LaunchError, SettingError
from forebay.ports import free_port
from forebay.processes import parent_death_signal
from forebay.settings import Settings
from forebay.testing import wait_until

START_S = 60.0
BUCKET = "forebay-tests"


def refusal(status: int, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>-</Message></Error>"
    return (
        f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


class StoreLink(Link):
    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._answer: bytes | None = None

    def busy(self) -> None:
        """Answer each request with 503, until `fix`."""
        self.refuse(503, "SlowDown")

    def refuse(self, status: int, code: str) -> None:
        """Answer each request with `status` and the error `code`, until `fix`."""
        self._answer = refusal(status, code)
        self.cut()
        self._call(super()._restore)

    def restore(self) -> None:
        self._answer = None
        super().restore()

    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = self._answer
        if answer is None:
            await super()._taken(reader, writer)
            return
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            # Answer even if the client is still sending its body.
            with suppress(asyncio.TimeoutError):
                while await asyncio.wait_for(reader.read(PIECE_BYTES), 1.0):
                    pass
        writer.close()


class ObjectStore:
    """A running server, and the variables with which a client reaches its one bucket, through `link`."""

    def __init__(self, link: StoreLink, port: int) -> None:
        self.link = link
        self.variables: Mapping[str, str] = {
            "AWS_ENDPOINT_URL": link.url,
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLEOFTESTS",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests-of-forebay",
            "AWS_SESSION_TOKEN": "token-of-the-tests-of-forebay",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.port = port
        self.direct_url = f"http://127.0.0.1:{port}"


@contextmanager
def object_store(work: Path) -> Iterator[ObjectStore]:
    """A server with an empty bucket `BUCKET` during the block; its log goes to `work`."""
    try:
        import moto.server  # noqa: F401
    except ModuleNotFoundError:
        raise SettingError("the S3 server is missing: pip install 'moto[s3]' flask flask-cors") from None
    port = free_port()
    with (work / "moto.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=parent_death_signal(signal.SIGKILL),  # noqa: PLW1509
        )
    try:
        link = StoreLink(port)
        with link:
            store = ObjectStore(link, port)
            _make_bucket(store, process)
            yield store
    finally:
        process.kill()
        process.wait()


def _make_bucket(store: ObjectStore, process: subprocess.Popen[bytes]) -> None:
    from botocore.exceptions import BotoCoreError
    from botocore.session import get_session

    client = get_session().create_client(
        "s3",
        endpoint_url=store.direct_url,
        region_name="us-east-1",
        aws_access_key_id=store.variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=store.variables["AWS_SECRET_ACCESS_KEY"],
    )

    def made() -> bool:
        if process.poll() is not None:
            raise LaunchError(f"moto's server ended with status {process.returncode}")
        with suppress(BotoCoreError):
            client.create_bucket(Bucket=BUCKET)
            return True
        return False

    wait_until(made, START_S)


MOTO = "moto"


class OtherMachines:
    """The folders of one pipeline's starts, and its prefix in the store."""

    def __init__(
        self, work: Path, home: S3Path, connectors: Path, variables: Mapping[str, str], link: StoreLink | None
    ) -> None:
        self.place = FilesPlace(work, home)
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
