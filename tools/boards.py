"""The boards and alerts in docs/grafana, and the table of metrics in docs/how-to/metrics.md.

`python -m tools.boards` writes them; a test checks that they are up to date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.deploy.alerts import JOB, KAFKA_WAITS, AlertScope, pipeline_alerts
from forebay.flink.metric_names import BY_COMMITS, full_name, table
from forebay.yaml_document import to_yaml

DOCS = Path(__file__).parents[1] / "docs"
FOLDER, PAGE = DOCS / "grafana", DOCS / "how-to" / "metrics.md"
BEGIN = "<!-- Made from the code by tools.boards: do not edit from here … -->"
END = "<!-- … to here. -->"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
EVERY = "[$__rate_interval]"
COLUMNS, HEIGHT = 3, 8
STACKED = {"stacking": {"mode": "normal"}, "fillOpacity": 30}
GATEWAY, VLLM = "forebay_gateway_", "vllm:"
RANKS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries`: by their legends. `when`: it has values only then."""

    title: str
    queries: Mapping[str, str]
    unit: str = ""
    note: str = ""
    when: str = ""
    stacked: bool = False
    kind: str = "timeseries"


def _rate(metric: str, by: str = "", every: str = EVERY) -> str:
    group = f" by ({by}) " if by else ""
    return f"sum{group}(rate({full_name(metric)}{every}))"


def _sum(metric: str, by: str = "", over: str = "sum") -> str:
    return f"{over}{f' by ({by}) ' if by else ''}({full_name(metric)})"


def _quantiles(buckets: str) -> dict[str, str]:
    return {rank: f"histogram_quantile({q}, {_rate(buckets, 'le')})" for rank, q in RANKS.items()}


PIPELINE = {
    "Stream": (
        Panel(
            "Events",
            {"in": _rate("accepted"), "results": _rate("results"), "dead letters": _rate("dead_letters")},
            "eps",
        ),
        Panel(
            "Waiting",
            {"in flight": _sum("in_flight"), "for a place": _sum("pending")},
            note="If calls in flight reach `capacity`, the engine is the limit; if few are, the source is.",
        ),
        Panel(
            "Waiting in Kafka",
            {"records": _sum(KAFKA_WAITS)},
            when="with a Kafka source",
            note="Flink's count, without what Kafka's client has fetched.",
        ),
        Panel(
            "Input held back",
            {"share of the time": f"max(rate({full_name('waited_seconds')}{EVERY}))"},
            "percentunit",
            "How long the input waited because `capacity` was used up.",
        ),
        Panel(
            "Oldest event without an answer",
            {"age": f"clamp_min(time() - {_sum('oldest_read_timestamp_seconds', over='min')}, 0)"},
            "s",
        ),
        Panel(
            "Share of the source that was read",
            {"{{job_name}}": _sum("read_ratio", "job_name", "max")},
            "percentunit",
            when="if the source has an end",
        ),
    ),
    "Latency": (
        Panel("Event to result", _quantiles("event_seconds"), "s"),
        Panel("One call to the engine", _quantiles("call_seconds"), "s"),
        Panel("First token", _quantiles("first_token_seconds"), "s", when="if the engine streams"),
    ),
    "Engine": (
        Panel(
            "Tokens per second",
            {kind: _rate(f"{kind}_tokens") for kind in ("prompt", "cached", "completion")},
            note="`cached` are those of the prompt that were in the prefix cache.",
        ),
        Panel("Calls", {"calls": _rate("calls"), "retries": _rate("retries")}, "reqps"),
        Panel("Replicas that get requests", {"replicas": _sum("replicas", over="min")}),
        Panel(
            "Scaling",
            {
                "wanted replicas": _sum("wanted_replicas", over="max"),
                "waiting tokens": _sum("backlog_tokens"),
            },
            when="with `scaling`",
        ),
        Panel("Journal", {"hits": _rate("journal_hits"), "failures": _rate("journal_failures")}, "ops"),
        Panel(
            "KV caches from prefill",
            {
                "handed over": _rate("kv_transfers"),
                **{
                    cause: _rate(f"kv_fallbacks_{cause}")
                    for cause in ("no_server", "prefill_failed", "no_kv_cache", "decode_failed")
                },
            },
            "ops",
        ),
    ),
    "Failures and commits": (
        Panel("Failures by cause", {"{{cause}}": _rate("failures", "cause")}, "eps", stacked=True),
        Panel(
            "To look at",
            {"cut answers": _rate("cut_answers"), "odd times": _rate("suspect_times")},
            "eps",
            "Answers cut at `max_tokens`, and events with a time in 1970 or 1900.",
        ),
        Panel("Too large for the topic", {"results": _rate("too_large")}, "eps", when="if the sink is Kafka"),
        Panel(
            "Answer to commit",
            _quantiles("answer_to_commit_seconds"),
            "s",
            when=BY_COMMITS,
        ),
        Panel(
            "Answer to commit, about",
            {
                "{{job_name}}": f"1 / {_rate(JOB + 'numberOfCompletedCheckpoints', 'job_name', '[10m]')}"
                f" + {_sum(JOB + 'lastCheckpointDuration', 'job_name', 'max')} / 1000"
            },
            "s",
            "The average time between two checkpoints of ten minutes, and the length of the last one.",
        ),
        Panel(
            "Checkpoints",
            {
                "completed": _rate(f"{JOB}numberOfCompletedCheckpoints"),
                "failed": _rate(f"{JOB}numberOfFailedCheckpoints"),
            },
            "ops",
        ),
        Panel("Restarts of the job", {"{{job_name}}": _sum(f"{JOB}numRestarts", "job_name")}),
    ),
}
APPLICATIONS = {
    "Applications": (
        Panel(
            "Records read",
            {"{{job_name}}": f"{_rate('records', 'job_name')} or {_rate('accepted', 'job_name')}"},
            "eps",
        ),
        Panel(
            "Findings per minute",
            {"{{job_name}}: {{kind}}": f"60 * {_rate('findings', 'job_name, kind')}"},
            note="Trends: born, changed, peaked, ended, merged, returned, and why. Topics: born, emerging, "
            "grown, moved, merged, folded, died, and label. Summaries: summary, correction, failed_summary. "
            "Sessions: turn, ended.",
        ),
        Panel(
            "Open now",
            {"{{job_name}}": _sum("open_findings", "job_name")},
            note="Trends or topics that have begun and not ended.",
        ),
        Panel(
            "Dead letters and failed calls",
            {"{{job_name}}: {{cause}}": _rate("failures", "job_name, cause")},
            "eps",
            "Late records have the causes `late` and `ahead`.",
            stacked=True,
        ),
        Panel("Calls in flight", {"{{job_name}}": _sum("in_flight", "job_name")}),
        Panel(
            "Tokens per second",
            {
                "{{job_name}} prompts": _rate("prompt_tokens", "job_name"),
                "{{job_name}} answers": _rate("completion_tokens", "job_name"),
            },
        ),
    )
}
AVAILABLE, IN_FLIGHT = f"{GATEWAY}replica_available", f"{GATEWAY}replica_in_flight"
FLEET = {
    "Gateway": (
        Panel(
            "Requests that ended, by outcome",
            {"{{outcome}}": _rate(f"{GATEWAY}requests_total", "outcome")},
            "reqps",
            "A status, `hung_up` (the client left) or `cut` (the answer broke off).",
            stacked=True,
        ),
        Panel(
            "Refused by the gateway, by reason",
            {"{{code}}": _rate(f"{GATEWAY}refused_total", "code")},
            "reqps",
            "The code of the error: docs/gateway.md explains each.",
            stacked=True,
        ),
        Panel(
            "Sent to another replica, by cause",
            {"{{cause}}": _rate(f"{GATEWAY}retries_total", "cause")},
            "reqps",
            stacked=True,
        ),
        Panel(
            "Time to the first byte",
            _quantiles(f"{GATEWAY}first_byte_seconds_bucket"),
            "s",
            "From a request's head. Of a stream, the first byte comes with the first token.",
        ),
        Panel("Time to the end of the answer", _quantiles(f"{GATEWAY}duration_seconds_bucket"), "s"),
        Panel(
            "Requests in progress",
            {
                "in flight": _sum(f"{GATEWAY}in_flight"),
                "waiting for room": _sum(f"{GATEWAY}waiting"),
                "peak of 30 s": _sum(f"{GATEWAY}peak_load"),
            },
            note="Those that wait for room are in flight, too.",
        ),
        Panel(
            "Tokens per second, by model and kind",
            {"{{model}} {{kind}}": _rate(f"{GATEWAY}tokens_total", "model, kind")},
            note="`cached` are those of the prompt that were in the prefix cache.",
        ),
        Panel(
            "Tokens per second, by key",
            {"{{key}}": _rate(f'{GATEWAY}tokens_total{{kind!="cached"}}', "key")},
            note="Prompts and answers. Keys have names here if `monitoring` has a key or a port.",
            stacked=True,
        ),
    ),
    "Fleet": (
        Panel(
            "Replicas that get requests",
            {"{{replica}}": _sum(AVAILABLE, "replica", "min")},
            kind="state-timeline",
        ),
        Panel(
            "Requests at each replica",
            {"{{replica}}": _sum(IN_FLIGHT, "replica")},
            note="Sent by all gateways.",
        ),
        Panel(
            "Replicas",
            {
                "wanted": _sum("wanted_replicas", over="max"),
                "known": f"count({_sum(AVAILABLE, 'replica', 'max')})",
                "get requests": f"sum({_sum(AVAILABLE, 'replica', 'min')})",
            },
            note="Pipelines with `scaling` report how many are wanted.",
        ),
        Panel(
            "Requests in vLLM's queue",
            {"{{instance}}": _sum(f"{VLLM}num_requests_waiting", "instance")},
            note="If some wait here for long, the engine has more requests than it can run.",
        ),
        Panel("Requests that vLLM runs", {"{{instance}}": _sum(f"{VLLM}num_requests_running", "instance")}),
        Panel(
            "KV cache in use",
            {"{{instance}}": _sum(f"{VLLM}kv_cache_usage_perc", "instance", "max")},
            "percentunit",
        ),
    ),
}
BOARDS: Mapping[str, Mapping[str, tuple[Panel, ...]]] = {
    "pipeline": PIPELINE,
    "applications": APPLICATIONS,
    "fleet": FLEET,
}


def board(name: str) -> str:
    """The board as JSON, a line for each panel."""
    variables = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {"name": "filter", "label": "Filter", "type": "adhoc", "datasource": SOURCE},
    ]
    head = {
        "title": f"Forebay: {name}",
        "uid": f"forebay-{name}",
        "tags": ["forebay"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
    }
    panels = ",\n  ".join(json.dumps(each) for each in _panels(BOARDS[name]))
    return f'{json.dumps(head)[:-1]}, "panels": [\n  {panels}\n]}}\n'


def _panels(rows: Mapping[str, tuple[Panel, ...]]) -> Iterator[dict[str, Any]]:
    y, id = 0, 0
    for title, panels in rows.items():
        id += 1
        yield {"id": id, "type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}}
        y += 1
        for at, panel in enumerate(panels):
            id += 1
            x = at % COLUMNS * 8
            place = {"x": x, "y": y + at // COLUMNS * HEIGHT, "w": 24 // COLUMNS, "h": HEIGHT}
            yield {"id": id, "gridPos": place, **_content(panel)}
        y += -(-len(panels) // COLUMNS) * HEIGHT


def _content(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"min": 0, **({"unit": panel.unit} if panel.unit else {})}
    if panel.stacked:
        defaults["custom"] = STACKED
    if panel.kind == "state-timeline":
        states = {"0": {"text": "no", "color": "red"}, "1": {"text": "yes", "color": "green"}}
        defaults["mappings"] = [{"type": "value", "options": states}]
    notes = [panel.note, f"There are values only {panel.when}." if panel.when else ""]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": " ".join(filter(None, notes)),
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults},
        "targets": [
            {"refId": chr(65 + at), "expr": query, "legendFormat": legend}
            for at, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def files() -> Iterator[tuple[Path, str]]:
    for name in BOARDS:
        yield FOLDER / f"{name}.json", board(name)
    groups = {"groups": [{"name": "forebay", "rules": list(pipeline_alerts(AlertScope()))}]}
    yield FOLDER / "alerts.yaml", to_yaml(groups)
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    rows = "\n".join(table())
    yield PAGE, f"{head}{BEGIN}\n\n{rows}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for path, text in files():
        path.write_text(text, encoding="utf-8")
