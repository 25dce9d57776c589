"""A submitted job, through Flink's REST service: its state, metrics and checkpoints."""

from __future__ import annotations

import itertools
import math
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.version import __version__ as FLINK_VERSION

from forebay.clients.s3.location import Location, uri_of
from forebay.clock import Clock, SystemClock
from forebay.errors import LaunchError, PipelineFailed, SettingError
from forebay.flink.checkpoints import MAX_DRAINS, drain_folder
from forebay.flink.jvm import MORE_THREADS, NO_THREAD
from forebay.flink.metric_names import FAILURES, GROUP, read_name
from forebay.flink.metrics import KEYED, PASSED, READ, READ_METRIC, SHARD_MARKS
from forebay.flink.rest import FlinkRest, NotFound

if TYPE_CHECKING:
    from pyflink.common import JobClient
    from pyflink.datastream import StreamExecutionEnvironment

MAX_CAUSE_CHARS = 500
QUERY_CHARS = 3000
ENDED = frozenset(("FINISHED", "FAILED", "CANCELED"))
POLL_S = 0.1
TRACEBACK = "Traceback (most recent call last):"
PEMJA = re.compile(r"^pemja\.core\.PythonException: <class '([^']+)'>: ?")
FRAME = re.compile(r"\n\s+(?:at [^\s(]+\(|\.\.\. \d+ more)")
UNREADABLE = re.compile(r"Could not parse value ('[^\n]{0,200}') for key '([^'\n]+)'")
QUALIFIED = re.compile(r"^(?:[A-Za-z_][\w$]*\.)+([A-Za-z_][\w$]*)(?=:|$)")
NAMES_S = 30.0
YOUNG_S = 20.0
MANAGERS_S = 2.0
FAILED_COMMITS = "failedCommittables"
HELD_BACK = "accumulateBackPressuredTimeMs"


class JvmGone(PipelineFailed):
    pass


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """`done`: the latest completed, oldest first: trigger (wall clock) and duration, in ms.

    Numbers, 0 for none: `newest`: last triggered; `newest_done`: last completed except savepoints;
    `newest_clear`: last of those without in-flight records.
    """

    completed: int
    failed: int
    done: tuple[tuple[int, int], ...]
    newest: int = 0
    newest_done: int = 0
    newest_clear: int = 0
    restored: int = 0
    failure: str = ""


class Spread(NamedTuple):
    sum: float
    min: float
    max: float


class JobFailure(NamedTuple):
    time_ms: int
    task: str
    cause: str


class RunningJob:
    """Methods block for one or a few REST calls and raise `LaunchError` if none is answered.

    An embedded cluster's REST service ends with its job; `ended` still works then.
    """

    def __init__(self, client: JobClient, rest: FlinkRest, *, clock: Clock | None = None) -> None:
        self.client = client
        self.id = str(client.get_job_id())
        self.rest = rest
        self._clock = clock or SystemClock()
        self._begun_s = self._clock.monotonic_s()
        self._vertices: list[str] = []
        self._inputs: dict[str, list[str]] = {}
        self._names: dict[tuple[str, Callable[[str], bool]], tuple[float, list[str]]] = {}
        self._managers = (-math.inf, 0)
        self._result = client.get_job_execution_result()
        self._drain: str | None = None
        self._drains = 0

    def ended(self) -> str | None:
        """None while the job runs; "" if it finished, else Flink's cause in one line. Raises `JvmGone`."""
        try:
            if not self._result.done():
                return None
            error = self._result.exception()
        except (Py4JError, OSError) as gone:
            why = "was it killed, or out of memory? Its log is in the folder of Flink's logs"
            raise JvmGone(f"{_gone(gone)}: {why}") from None
        return "" if error is None else root_cause(str(error))

    def await_end(self) -> str:
        """Block until the job has ended or its JVM is gone. Returns "" if it finished, else why not."""
        try:
            self._result.result()
        except Py4JJavaError as error:
            return java_cause(error)
        except (Py4JError, OSError) as gone:
            return _gone(gone)
        return ""

    def state(self) -> str:
        return str(self.rest.json(f"/jobs/{self.id}")["state"])

    def restarts(self) -> int:
        found = self.rest.json(f"/jobs/{self.id}/metrics?get=numRestarts")
        return int(float(found[0]["value"])) if found else 0

    def all_run(self) -> bool:
        found = self.rest.json(f"/jobs/{self.id}")
        tasks = {vertex["status"] for vertex in found["vertices"]}
        return found["state"] == "RUNNING" and tasks <= {"RUNNING", "FINISHED"}

    def failures(self) -> list[JobFailure]:
        history = self.rest.json(f"/jobs/{self.id}/exceptions").get("exceptionHistory", {}).get("entries", [])
        return [
            JobFailure(each["timestamp"], _task(each.get("taskName")), root_cause(each["stacktrace"]))
            for each in reversed(history)
        ]

    def cancel(self) -> None:
        self.rest.ask(f"/jobs/{self.id}?mode=cancel", "PATCH")

    def drain(self, folder: Location) -> None:
        """End the job as if its sources had ended. Returns at once; call it again until the job has ended.

        What was read is completed and committed, with a savepoint below `folder`. Each try has a
        `drain_folder`, which a run that takes over can occupy. Raises `PipelineFailed` after `MAX_DRAINS`
        failed tries.
        """
        path = f"/jobs/{self.id}"
        if self._drain is not None and self._goes_on(f"{path}/savepoints/{self._drain}"):
            return
        if self._drains == MAX_DRAINS:
            raise PipelineFailed(f"the job could not be drained: {MAX_DRAINS} savepoints in {folder} failed")
        target = uri_of(folder / drain_folder(self._drains))
        self._drains += 1
        payload = {"drain": True, "targetDirectory": target, "formatType": "NATIVE"}
        self._drain = str(self.rest.json(f"{path}/stop", "POST", payload)["request-id"])

    def _goes_on(self, operation: str) -> bool:
        try:
            found = self.rest.json(operation)
        except NotFound:
            return False  # A restarted job manager does not know it.
        return "failure-cause" not in (found.get("operation") or {})

    def counts(self) -> dict[str, float]:
        """The counters and gauges of `METRICS`, over all subtasks and operators; empty before they exist.

        Those with a label are named NAME_VALUE. `held_back_ms`: time for which later tasks blocked the
        operator; `source_held_back_ms`: for which they blocked a task in front of it.
        """
        values: dict[str, float] = {}
        held_back: dict[str, Spread] = {}
        passed: dict[str, float] = {}
        operator, keyed = "", False
        for vertex, metric, over in self._metrics(_is_counted):
            if (found := read_name(metric)) is not None:
                each, name = found
                # The functions of an application in front of the operator `infer` have dead letters, too.
                before = values.get(name, 0) if each.over == "sum" else 0
                values[name] = before + getattr(over, each.over)
                if name == "in_flight":
                    operator = vertex
            elif (read := READ_METRIC.fullmatch(metric)) is not None:
                passed[read[1]], keyed = over.sum, KEYED in metric
            elif metric.endswith(f".{FAILED_COMMITS}"):
                values[FAILED_COMMITS] = values.get(FAILED_COMMITS, 0) + over.sum
            else:
                held_back[vertex] = over
        named = sum(count for name, count in values.items() if name.startswith(f"{FAILURES}_"))
        unlisted = keyed and SHARD_MARKS not in passed
        if unlisted or values.get("dead_letters", 0) > named:
            self._names.clear()
        if PASSED in passed and not unlisted:
            values[READ] = passed[PASSED] - passed.get(SHARD_MARKS, 0)
        if not operator:
            return values
        own = held_back.get(operator, Spread(0, 0, 0))
        others = max(
            (over.max for each, over in held_back.items() if each in self._before(operator)), default=0
        )
        return {**values, "held_back_ms": own.sum, "source_held_back_ms": others}

    def _before(self, vertex: str) -> set[str]:
        found, left = set[str](), [vertex]
        while left:
            new = {*self._inputs.get(left.pop(), ())} - found
            found |= new
            left += new
        return found

    def by_operator(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for _, metric, over in self._metrics(_is_ours):
            if (named := read_name(metric)) is not None and named[0].over == "sum":
                found.setdefault(metric.rpartition(f".{GROUP}.")[0], {})[named[1]] = over.sum
        return found

    def highest(self, wanted: Callable[[str], bool]) -> dict[str, float]:
        return {name: over.max for _, name, over in self._metrics(wanted)}

    def _metrics(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, str, Spread]]:
        if not self._vertices:
            # They never change for a job.
            job = self.rest.json(f"/jobs/{self.id}")
            self._vertices = [vertex["id"] for vertex in job["vertices"]]
            nodes = job["plan"]["nodes"]
            self._inputs = {node["id"]: [each["id"] for each in node.get("inputs", ())] for node in nodes}
        for vertex in self._vertices:
            base = f"/jobs/{self.id}/vertices/{vertex}/subtasks/metrics"
            for query in queries(self._metric_names(base, wanted)):
                for metric in self.rest.json(f"{base}?get={query}"):
                    over = Spread(*(float(metric[over]) for over in ("sum", "min", "max")))
                    yield vertex, metric["id"], over

    def _metric_names(self, base: str, wanted: Callable[[str], bool]) -> list[str]:
        now_s = self._clock.monotonic_s()
        listed_s, names = self._names.get((base, wanted), (-math.inf, []))
        if now_s - listed_s >= NAMES_S or now_s - self._begun_s < YOUNG_S:
            names = [metric["id"] for metric in self.rest.json(base) if wanted(metric["id"])]
            self._names[base, wanted] = now_s, names
        return names

    def checkpoints(self) -> Checkpoints:
        found = self.rest.json(f"/jobs/{self.id}/checkpoints")
        over = next((c for c in found["history"] if c["status"] in {"COMPLETED", "FAILED"}), None)
        failed = over is not None and over["status"] == "FAILED"
        done = [c for c in found["history"] if c["status"] == "COMPLETED" and not c["is_savepoint"]]
        return Checkpoints(
            completed=found["counts"]["completed"],
            failed=found["counts"]["failed"],
            done=tuple((c["trigger_timestamp"], c["end_to_end_duration"]) for c in reversed(done)),
            newest=max((c["id"] for c in found["history"]), default=0),
            newest_done=max((c["id"] for c in done), default=0),
            newest_clear=max((c["id"] for c in done if c["persisted_data"] == 0), default=0),
            restored=found["counts"].get("restored", 0),
            failure=root_cause(str(over.get("failure_message") or "")) if over and failed else "",
        )

    def task_managers(self) -> int:
        now_s = self._clock.monotonic_s()
        if now_s - self._managers[0] >= MANAGERS_S:
            self._managers = now_s, int(self.rest.json("/overview")["taskmanagers"])
        return self._managers[1]


def _gone(error: Exception) -> str:
    return f"the JVM that ran the job is gone ({type(error).__name__})"


def _task(name: str | None) -> str:
    return (name or "").partition(" - execution #")[0]


def _is_counted(metric: str) -> bool:
    of_flink = metric.endswith(f".{FAILED_COMMITS}") or metric == HELD_BACK or READ_METRIC.fullmatch(metric)
    return bool(of_flink) or _is_ours(metric)


def _is_ours(metric: str) -> bool:
    return read_name(metric) is not None


def queries(ids: Iterable[str]) -> Iterator[str]:
    part = ""
    for name in map(quote, ids):
        if part and len(part) + 1 + len(name) > QUERY_CHARS:
            yield part
            part = ""
        part = f"{part},{name}" if part else name
    if part:
        yield part


def submit(env: StreamExecutionEnvironment, name: str, rest: FlinkRest) -> RunningJob:
    return RunningJob(start_job(env, name), rest)


def start_job(env: StreamExecutionEnvironment, name: str | None) -> JobClient:
    """Return once Flink has accepted the job. Raises `SettingError`, `PipelineFailed` and `JvmGone`."""
    try:
        return env.execute_async(name)
    except Py4JJavaError as error:
        wrong = wrong_option(error)
        if wrong is not None:
            raise SettingError(wrong) from None
        cause, host = java_cause(error), socket.gethostname()
        if cause.startswith(f"UnknownHostException: {host}:"):
            raise SettingError(
                f"Flink needs an address for the name of this machine, and {host!r} has none: add the line "
                f"`127.0.0.1 {host}` to /etc/hosts"
            ) from None
        fix = f"; {MORE_THREADS}" if NO_THREAD in cause else ""
        raise PipelineFailed(f"Flink refused the job: {cause}{fix}") from None
    except (Py4JError, OSError) as error:
        raise JvmGone(f"the JVM that was to run the job is gone ({type(error).__name__})") from None


def wrong_option(error: Py4JJavaError) -> str | None:
    found = UNREADABLE.search(str(error))
    return (
        None if found is None else f"Flink's options: expected another value for {found[2]}, found {found[1]}"
    )


def java_cause(error: Py4JJavaError) -> str:
    return root_cause(str(error).partition("\n: ")[2] or str(error))


def check_cluster(address: str) -> None:
    """Raise `SettingError` unless a Flink of this version answers at `HOST:PORT`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SettingError(f"cluster: expected HOST:PORT of Flink's REST service, found {address!r}")
    try:
        found = FlinkRest(f"http://{address}").json("/config")
        version = str(found["flink-version"])
    except LaunchError as error:
        raise SettingError(f"cluster: no Flink answers at {address}: {error}") from None
    except (KeyError, TypeError):
        raise SettingError(f"cluster: what answers at {address} is not Flink's REST service") from None
    if _minor(version) != _minor(FLINK_VERSION):
        raise SettingError(
            f"cluster: expected Flink {_minor(FLINK_VERSION)}, as installed here; {address} runs {version}"
        )


def end_job(rest: FlinkRest, job_id: str, timeout_s: float, *, unknown_s: float = 0.0) -> str | None:
    """Cancel a job unless it has ended, and block until it has. Returns its final state, None if unknown.

    Raises `LaunchError` and, if the job runs after `timeout_s`, `PipelineFailed`.
    """
    path = f"/jobs/{job_id}"
    begin_s = time.monotonic()
    deadline_s = begin_s + timeout_s
    asked = False
    while True:
        try:
            state = str(rest.json(path)["state"])
        except NotFound:
            if asked or time.monotonic() - begin_s >= unknown_s:
                return None
            time.sleep(POLL_S)
            continue
        if state in ENDED:
            return state
        if not asked:
            asked = True
            rest.ask(f"{path}?mode=cancel", "PATCH")
        if time.monotonic() >= deadline_s:
            raise PipelineFailed(f"job {job_id} at {rest.url} does not end; it is {state}")
        time.sleep(POLL_S)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def root_cause(stacktrace: str) -> str:
    """The last cause of a Java stack trace, or the last line of a Python error, in one line."""
    last = stacktrace.rpartition("Caused by: ")[2]
    cause = FRAME.split(last, maxsplit=1)[0].strip()
    if TRACEBACK in cause:
        # The error follows the last traceback, whose own lines are indented; its text may have several.
        lines = cause.rpartition(TRACEBACK)[2].splitlines()
        detail = list(itertools.dropwhile(lambda line: not line or line[0].isspace(), lines))
        cause = "\n".join(itertools.takewhile(bool, detail)) or cause
    cause = PEMJA.sub(r"\1: ", cause)
    cause = QUALIFIED.sub(r"\1", " ".join(cause.split()), count=1)
    return cause if len(cause) <= MAX_CAUSE_CHARS else cause[:MAX_CAUSE_CHARS] + "…"
