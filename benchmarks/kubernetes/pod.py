"""Runs one pod as a process: starts, probes, restarts, drains and ends it, and reports to the API server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.kubernetes.container import Command, Probe
from benchmarks.kubernetes.plane import Api, Place
from forebay.processes import parent_death_signal

BACK_OFF_S = 0.5
MAX_BACK_OFF_S = 10.0
LOOK_S = 0.2
END_S = 5.0
"""Minimum time for a program to end after its pre-stop command."""


def timestamp() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class PodProcess:
    def __init__(self, api: Api, body: Mapping[str, Any], place: Place, command: Command, log: Path) -> None:
        self._api = api
        self._container = body["spec"]["containers"][0]
        self._spec = body["spec"]
        metadata = body["metadata"]
        self._path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._place = place
        self._command = command
        self._log = log
        self._began = timestamp()
        self._restarts = 0
        self._ready = False
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        with self._log.open("ab") as log:
            while not self.stopping.is_set():
                process = await self._start(self._command.words, log)
                await self._report("running")
                await self._watch(process)
                if self.stopping.is_set():
                    await self._end(process, log)
                    break
                self._ready = False
                if self._spec.get("restartPolicy") == "Never":
                    await self._report("ended", process.returncode)
                    await self.stopping.wait()
                    break
                self._restarts += 1
                await self._report("waiting", process.returncode)
                await self._stopped_within(min(BACK_OFF_S * 2**self._restarts, MAX_BACK_OFF_S))
        await self._api.delete(self._path, grace_s=0)

    async def _start(self, words: Sequence[str], log: Any) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._place.prefix,
            *words,
            env=dict(self._command.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=parent_death_signal(signal.SIGKILL),
        )

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Wait until the process has ended or the pod must stop; kills a process that does not become ready
        in time."""
        ended = asyncio.create_task(process.wait())
        probes = asyncio.create_task(self._probe(process))
        stopping = asyncio.create_task(self.stopping.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, probes, stopping):
            task.cancel()
        await asyncio.gather(ended, probes, stopping, return_exceptions=True)

    async def _probe(self, process: asyncio.subprocess.Process) -> None:
        start, ready = (Probe.parse(self._container, name) for name in ("startupProbe", "readinessProbe"))
        failures = 0
        while start is not None and not await self._answers(start):
            failures += 1
            if failures >= start.failures:
                _signal(process, signal.SIGKILL)
                return
            await asyncio.sleep(start.every_s)
        failures = 0
        while True:
            found = ready is None or await self._answers(ready)
            failures = 0 if found else failures + 1
            if found != self._ready and (found or ready is None or failures >= ready.failures):
                self._ready = found
                await self._report("running")
            # A kubelet probes more often until the container is ready.
            await asyncio.sleep(LOOK_S if ready is None or not self._ready else ready.every_s)

    async def _answers(self, probe: Probe) -> bool:
        with suppress(OSError, asyncio.TimeoutError, ValueError, IndexError):
            status = await asyncio.wait_for(_status(self._place.ip, probe), probe.timeout_s)
            return 200 <= status < 400
        return False

    async def _end(self, process: asyncio.subprocess.Process, log: Any) -> None:
        grace_s = float(self._spec.get("terminationGracePeriodSeconds", 30))
        began_s = asyncio.get_running_loop().time()
        if self._command.before_stop and process.returncode is None:
            hook = await self._start(self._command.before_stop, log)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(hook.wait(), grace_s)
        _signal(process, signal.SIGTERM)
        left_s = grace_s - (asyncio.get_running_loop().time() - began_s)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), max(left_s, END_S))
        _signal(process, signal.SIGKILL)
        await process.wait()

    async def _stopped_within(self, seconds: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)

    async def _report(self, state: str, code: int | None = None) -> None:
        await self._api.patch(f"{self._path}/status", {"status": self._status(state, code)})

    def _status(self, state: str, code: int | None) -> dict[str, Any]:
        container = self._container
        states = {
            "running": {"running": {"startedAt": self._began}},
            "waiting": {"waiting": {"reason": "CrashLoopBackOff", "message": f"ended with status {code}"}},
            "ended": {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}},
        }
        phase = {"ended": "Failed" if code else "Succeeded"}.get(state, "Running")
        conditions = {
            "PodScheduled": True,
            "PodReadyToStartContainers": True,
            "Initialized": True,
            "Ready": self._ready,
            "ContainersReady": self._ready,
        }
        return {
            "phase": phase,
            "hostIP": "10.244.0.1",
            "podIP": self._place.ip,
            "podIPs": [{"ip": self._place.ip}],
            "startTime": self._began,
            "conditions": [
                {"type": name, "status": str(value), "lastTransitionTime": timestamp()}
                for name, value in conditions.items()
            ],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": self._ready,
                    "started": state == "running",
                    "restartCount": self._restarts,
                    "state": states[state],
                }
            ],
        }


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


async def _status(ip: str, probe: Probe) -> int:
    reader, writer = await asyncio.open_connection(ip, probe.port)
    try:
        writer.write(f"GET {probe.path} HTTP/1.0\r\nHost: {ip}\r\n\r\n".encode())
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()
