"""A submitted job, seen through Flink's REST service: its state, its metrics, its checkpoints."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from pyflink.common import JobClient
from pyflink.datastream import StreamExecutionEnvironment

from forebay.errors import LaunchError
from forebay.operators.counts import COUNTERS, GAUGES

REST_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 8 << 20
ADDED_UP = frozenset((*COUNTERS, "in_flight", "pending"))


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What Flink says of a job's checkpoints. `done`: the latest completed ones, oldest first, each with the
    wall-clock moment at which it was triggered and its duration, both in milliseconds."""

    completed: int
    failed: int
    done: tuple[tuple[int, int], ...]


class RunningJob:
    """One job. Methods block for one or a few REST calls and raise `LaunchError` where none is answered.

    The REST service of an embedded cluster ends with its job; `ended` then still knows how.
    """

    def __init__(self, client: JobClient, rest_url: str) -> None:
        self.id = str(client.get_job_id())
        self.rest_url = rest_url
        self._result = client.get_job_execution_result()

    def ended(self) -> str | None:
        """None while the job runs; then "" where it finished, else Flink's cause in one line."""
        if not self._result.done():
            return None
        error = self._result.exception()
        return "" if error is None else root_cause(str(error))

    def state(self) -> str:
        """Flink's word: CREATED, RUNNING, RESTARTING, FINISHED, FAILED, CANCELED, …"""
        return str(self._get(f"/jobs/{self.id}")["state"])

    def restarts(self) -> int:
        """How often the job was restarted after a failure."""
        found = self._get(f"/jobs/{self.id}/metrics?get=numRestarts")
        return int(float(found[0]["value"])) if found else 0

    def failure(self) -> str:
        """The last failure's root cause in one line; empty where there was none."""
        history = self._get(f"/jobs/{self.id}/exceptions").get("exceptionHistory", {}).get("entries", [])
        return root_cause(history[0]["stacktrace"]) if history else ""

    def cancel(self) -> None:
        """Ask the job to stop; retained checkpoints stay."""
        self._call("PATCH", f"/jobs/{self.id}?mode=cancel")

    def counts(self) -> dict[str, float]:
        """The operator's counters and gauges over its subtasks; empty before they are registered.

        Counters and `in_flight` are sums, latencies the highest of any subtask.
        """
        values: dict[str, float] = {}
        for vertex in self._get(f"/jobs/{self.id}")["vertices"]:
            base = f"/jobs/{self.id}/vertices/{vertex['id']}/subtasks/metrics"
            ids = [m["id"] for m in self._get(base) if ".forebay." in m["id"]]
            if not ids:
                continue
            for metric in self._get(f"{base}?get={','.join(ids)}"):
                name = metric["id"].rsplit(".", 1)[1]
                if name in COUNTERS or name in GAUGES:
                    values[name] = float(metric["sum" if name in ADDED_UP else "max"])
        return values

    def checkpoints(self) -> Checkpoints:
        """The job's checkpoints so far."""
        found = self._get(f"/jobs/{self.id}/checkpoints")
        done = [c for c in found["history"] if c["status"] == "COMPLETED" and not c["is_savepoint"]]
        return Checkpoints(
            completed=found["counts"]["completed"],
            failed=found["counts"]["failed"],
            done=tuple((c["trigger_timestamp"], c["end_to_end_duration"]) for c in reversed(done)),
        )

    def _get(self, path: str) -> Any:
        return json.loads(self._call("GET", path) or "null")

    def _call(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(self.rest_url + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REST_TIMEOUT_S) as answer:
                body: bytes = answer.read(MAX_ANSWER_BYTES)
                return body
        except (OSError, urllib.error.URLError) as error:
            raise LaunchError(f"Flink at {self.rest_url} does not answer {path}: {error}") from None


def submit(env: StreamExecutionEnvironment, name: str, rest_url: str) -> RunningJob:
    """Start the job that was built in `env`; returns once Flink has taken it."""
    return RunningJob(env.execute_async(name), rest_url)


def free_port() -> int:
    """A TCP port on this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def root_cause(stacktrace: str) -> str:
    """The most telling line of a Java stack trace: the last cause, without the name of its class."""
    causes = [line for line in stacktrace.splitlines() if line.startswith("Caused by: ")]
    line = causes[-1].removeprefix("Caused by: ") if causes else next(iter(stacktrace.splitlines()), "")
    return line[:500]
