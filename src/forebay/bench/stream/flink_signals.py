"""Samples the Flink job: checkpoints, watermarks, and the operator's counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from forebay.bench.stream.records import MeasuredCheckpoint
from forebay.errors import LaunchError
from forebay.flink.rest import FlinkRest, TlsKeys
from forebay.pipeline.state_store import RunState

WATERMARK = ".currentOutputWatermark"
GAUGES = ("in_flight", "pending")
EARLIEST_MS, LATEST_MS = 0, 2**53
"""Watermarks outside mean: none yet, or the end of the input."""
AT_ONCE = 15
"""Metrics per request: Flink rejects an address of more than 4 KiB."""
NAMES_S = 20.0
RECORD_S = 10.0

Ask = Callable[[str], Any]
"""Returns Flink's REST answer at a path. Raises `LaunchError`."""


class FlinkSignals:
    """A `Source` of the job that `state` names: `in_flight`, `pending`, `watermark_delay_s`; also records
    checkpoints.

    The job's record may be in a slow store: it is read every `RECORD_S`, and if Flink no longer answers. For
    one thread; another may read `checkpoints` afterwards.
    """

    def __init__(
        self,
        state: Callable[[], RunState | None],
        keys: TlsKeys,
        *,
        ask: Callable[[RunState], Ask] | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._keys = keys
        self._open = ask or self._rest
        self._now_s = now_s
        self._job: str | None = None
        self._read_s = -math.inf
        self._ask: Ask = _nobody
        self._names: tuple[float, dict[str, list[str]]] = (-1e9, {})
        self.checkpoints: dict[tuple[str, int], Mapping[str, Any]] = {}

    def __call__(self) -> Mapping[str, float]:
        now_s = self._now_s()
        if self._job is None or now_s - self._read_s >= RECORD_S:
            self._find_job(now_s)
        if self._job is None:
            return {}
        try:
            self._look_at_checkpoints()
            return self._metrics()
        except (KeyError, TypeError, ValueError) as error:
            raise LaunchError(f"Flink's answer is not as expected: {error!r}") from None
        except LaunchError:
            self._read_s = -math.inf
            raise

    def _find_job(self, now_s: float) -> None:
        state = self._state()
        self._read_s = now_s
        if state is None or state.job is None:
            self._job = None
        elif state.job != self._job:
            self._job, self._ask, self._names = state.job, self._open(state), (-1e9, {})

    def _rest(self, state: RunState) -> Ask:
        if state.rest_port is None:
            return _nobody
        return FlinkRest(f"https://localhost:{state.rest_port}", self._keys).json

    def _look_at_checkpoints(self) -> None:
        assert self._job is not None
        for each in self._ask(f"/jobs/{self._job}/checkpoints")["history"]:
            if not each["is_savepoint"] and each["status"] in ("COMPLETED", "FAILED"):
                self.checkpoints[self._job, each["id"]] = each

    def _metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        lowest: float | None = None
        for vertex, names in self._wanted().items():
            base = f"/jobs/{self._job}/vertices/{vertex}/subtasks/metrics"
            for metric in self._values(base, names):
                name = metric["id"].rpartition(".")[2]
                if name in GAUGES:
                    found[name] = found.get(name, 0.0) + float(metric["sum"])
                elif EARLIEST_MS < float(metric["min"]) < LATEST_MS:
                    # The results' watermark is behind all earlier ones.
                    lowest = min(float(metric["min"]), LATEST_MS if lowest is None else lowest)
        if lowest is not None:
            found["watermark_delay_s"] = self._now_s() - lowest / 1000
        return found

    def _values(self, base: str, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        for begin in range(0, len(names), AT_ONCE):
            yield from self._ask(f"{base}?get={','.join(map(quote, names[begin : begin + AT_ONCE]))}")

    def _wanted(self) -> Mapping[str, list[str]]:
        now_s = time.monotonic()
        if now_s - self._names[0] > NAMES_S:
            vertices = [each["id"] for each in self._ask(f"/jobs/{self._job}")["vertices"]]
            listed = {
                vertex: [
                    name
                    for each in self._ask(f"/jobs/{self._job}/vertices/{vertex}/subtasks/metrics")
                    if _is_wanted(name := each["id"])
                ]
                for vertex in vertices
            }
            # Metrics appear as operators open.
            self._names = (now_s if any(map(_has_gauges, listed.values())) else -1e9, listed)
        return self._names[1]


def _is_wanted(name: str) -> bool:
    return name.endswith(WATERMARK) or (".forebay." in name and name.rpartition(".")[2] in GAUGES)


def _has_gauges(names: list[str]) -> bool:
    return any(name.endswith(f".{GAUGES[0]}") for name in names)


def _nobody(path: str) -> Any:
    raise LaunchError("there is no REST service to ask")


def checkpoints_between(
    seen: Mapping[tuple[str, int], Mapping[str, Any]], began_us: int, ended_us: int
) -> tuple[MeasuredCheckpoint, ...]:
    found = []
    for (_, number), each in seen.items():
        at_ms = each["trigger_timestamp"]
        if began_us <= at_ms * 1000 <= ended_us:
            found.append(
                MeasuredCheckpoint(
                    number=number,
                    at_s=(at_ms * 1000 - began_us) / 1e6,
                    duration_s=each["end_to_end_duration"] / 1000,
                    state_bytes=each["state_size"],
                    written_bytes=each.get("checkpointed_size", each["state_size"]),
                    completed=each["status"] == "COMPLETED",
                )
            )
    return tuple(sorted(found, key=lambda each: each.at_s))
