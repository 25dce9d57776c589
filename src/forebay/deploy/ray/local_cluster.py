"""Starts a Ray cluster on this machine if the fleet file names none."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from forebay.clients.ray.rest import ServeRest, TokenRefused
from forebay.clock import Clock, SystemClock
from forebay.deploy.ray.fleet import Note, Sleep
from forebay.errors import DeployError, SettingError
from forebay.files import private_folder
from forebay.ports import port_is_free
from forebay.settings import AWS_SECRETS, load_settings, ray_token
from forebay.untrusted_text import replace_controls

LOOPBACK = "127.0.0.2"
"""Ray replaces 127.0.0.1 by the machine's outer address."""
START_S = 180.0
ANSWERS_S, LOOK_S = 60.0, 0.5
NEEDS = "pip install 'forebay[ray]', or name a cluster's dashboard by --address"


def find_ray() -> Path:
    sibling = Path(sys.executable).with_name("ray")
    found = str(sibling) if sibling.exists() else shutil.which("ray")
    if found is None:
        raise DeployError(f"there is no Ray cluster on this machine, and no Ray to start one: {NEEDS}")
    return Path(found)


def start_local_cluster(
    address: str, note: Note, *, ray: Callable[[], Path] = find_ray, options: Sequence[str] = ()
) -> bool:
    """Start a cluster unless something listens at `address`; blocks. Returns whether one was started.

    Ray's other servers listen on all interfaces, so callers need Ray's token, which is created if missing.
    Raises `DeployError`.
    """
    port = urlsplit(address).port or 80
    if not port_is_free(port):
        return False
    program = ray()
    if sys.platform != "linux":
        raise DeployError("Forebay starts Ray on Linux only: start it with `ray start --head`")
    settings = replace(load_settings(), secret_variables=AWS_SECRETS)
    environment = settings.child_environment({"RAY_USAGE_STATS_ENABLED": "0"})
    environment.pop("RAY_ADDRESS", None)
    mode = environment.get("RAY_AUTH_MODE", "").strip().lower() or "token"
    if mode != "token":
        raise DeployError(
            f"RAY_AUTH_MODE is {mode[:40]!r}: without a token, anybody who reaches this machine could run "
            f"programs on the cluster: unset it, or start a cluster yourself"
        )
    environment["RAY_AUTH_MODE"] = mode
    note(
        f"there is no Ray cluster at {address}: starting one on this machine. Its ports are open to the "
        f"network, and require Ray's token; `ray stop` ends it"
    )
    try:
        token = ray_token()
    except SettingError as error:
        raise DeployError(f"Ray's token: {error}") from None
    if token is None:
        _run(environment, program, "get-auth-token", "--generate")
    # Ray runs code from its folder, to which all users may write: only a private parent protects it.
    # Longer paths than this one would not fit into the addresses of its sockets.
    folder = private_folder(Path(tempfile.gettempdir(), f"forebay-ray-{os.getuid()}"))
    places = [
        f"--dashboard-port={port}",
        f"--node-ip-address={LOOPBACK}",
        "--port=0",
        f"--temp-dir={folder}/ray",
    ]
    shown = ("--include-dashboard=true", "--dashboard-host=127.0.0.1")
    _run(environment, program, "start", "--head", *shown, *places, *options)
    return True


async def until_it_answers(
    rest: ServeRest, *, clock: Clock | None = None, sleep: Sleep = asyncio.sleep
) -> None:
    """Raises `DeployError` for a wrong token, or after a minute."""
    time = clock or SystemClock()
    end_s = time.monotonic_s() + ANSWERS_S
    while True:
        try:
            await rest.instance()
        except TokenRefused:
            raise
        except DeployError:
            if time.monotonic_s() >= end_s:
                raise
            await sleep(LOOK_S)
        else:
            return


def _run(environment: Mapping[str, str], program: Path, *words: str) -> None:
    with tempfile.TemporaryFile() as printed:
        try:
            done = subprocess.run(
                [str(program), *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                # It prints the token, which must stay secret.
                stdout=subprocess.DEVNULL if words[0] == "get-auth-token" else printed,
                stderr=printed,
                timeout=START_S,
                check=False,
                umask=0o077,
            )
        except subprocess.TimeoutExpired:
            raise DeployError(f"{program} {words[0]}: not done after {START_S:g} s") from None
        except OSError as error:
            raise DeployError(f"{program}: {error.strerror}; {NEEDS}") from None
        if done.returncode != 0:
            printed.seek(0)
            detail = replace_controls(printed.read()[-2000:].decode("utf-8", "replace")).strip()
            raise DeployError(f"{program} {words[0]} ended with {done.returncode}: {detail}")
