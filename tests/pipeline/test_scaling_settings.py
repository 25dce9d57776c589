"""How many replicas answer: settings of the pipeline file and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import Backlog, Signals, Timings, Tokens
from forebay.fleet.autoscale.deadline import DeadlinePolicy
from forebay.fleet.autoscale.demand import FRESH_S
from forebay.fleet.autoscale.proportional import QueueLength
from forebay.fleet.discovery import FixedReplicas
from forebay.pipeline.inference import call_of, published_scaling
from forebay.pipeline.inference_settings import replicas_settings
from forebay.pipeline.load import load_spec
from forebay.records import Event, KeyedEvent

FILE = """
name: p
source: {type: jsonl, path: in.jsonl}
prompt: "{{ text }}"
sink: {type: jsonl, path: out}
parallelism: 2
"""


def spec(folder: Path, scaling: str = "", *settings: str) -> Any:
    (folder / "p.yaml").write_text(FILE + (f"scaling: {scaling}\n" if scaling else ""))
    return load_spec(folder / "p.yaml", settings)


def test_a_range_is_enough_and_a_policy_may_be_named(tmp_path: Path) -> None:
    assert spec(tmp_path).scaling is None
    scaler, _ = spec(tmp_path, "{max: 2}").scaling.settings(128).scaler()
    assert isinstance(scaler.policy, DeadlinePolicy)
    assert (scaler.limits.least, scaler.limits.most) == (0, 2)
    assert scaler.limits.stale_after_s == FRESH_S, "or a stream without reports would seem empty"
    scaler, _ = spec(tmp_path, "{policy: queue, min: 1, max: 3}").scaling.settings(128).scaler()
    assert isinstance(scaler.policy, QueueLength)
    over = spec(tmp_path, "{max: 2}", *replicas_settings("1..4"))
    assert (over.scaling.min, over.scaling.max) == (1, 4)
    assert spec(tmp_path, "", *replicas_settings("3")).scaling.min == 3


def test_a_budget_and_times_reach_the_policy_and_its_limits(tmp_path: Path) -> None:
    given = "{max: 9, budget_per_hour: 6.3, price_per_hour: 2.1, boot_s: 100, warm_up_s: 20, drain_s: 30}"
    settings = spec(tmp_path, given).scaling.settings(128)
    assert settings.timings == Timings(100.0, 20.0, 30.0, 5.0)
    scaler, _ = settings.scaler()
    assert scaler.limits.ceiling == 3
    waits = Signals(0.0, ready=1, backlog=(Backlog(60.0, Tokens(9000, 9e6, 9e6)),))
    found = scaler.decide(waits)
    assert found.wanted == 3
    assert "in 125 s" in found.reason, "boot, warm-up, and the time to the next decision"


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ("{min: 3, max: 1}", r"p.yaml:7: scaling.min: expected at most scaling.max \(1\), found 3"),
        ("{max: 0}", "scaling.max"),
        ("{min: 1}", "scaling.max: "),
        ("{policy: dedline, max: 2}", "expected one of queue, .*found 'dedline'; did you mean 'deadline'"),
        ("{max: 2, slo_s: 0}", "scaling.slo_s"),
        ("{max: 2, warm_up_s: -1}", "scaling.warm_up_s"),
        ("{max: 2, drain_s: .inf}", "scaling.drain_s"),
        ("{max: 2, classes: {of: '{{ tier }}'}}", "scaling.classes.slo_s"),
        ("{max: 2, classes: {slo_s: {a: 5}}}", "scaling.classes.of"),
        ("{max: 2, classes: {of: '{{ tier }', slo_s: {a: 5}}}", "scaling.classes.of"),
        ("{max: 2, classes: {of: '{{ tier }}', slo_s: {}}}", "scaling.classes.slo_s"),
        ("{max: 2, classes: {of: '{{ tier }}', slo_s: {a: 0}}}", "scaling.classes.slo_s.a"),
        ("{max: 2, classes: {of: '{{ tier }}', slo_s: {A B: 5}}}", "expected a name of a-z, 0-9"),
        ("{max: 2, classes: {of: '{{ tier }}', slo_s: {default: 5}}}", "scaling.slo_s is that class's"),
        (
            "{max: 2, classes: {of: x, slo_s: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1, i: 1}}}",
            "at most 8",
        ),
        ("{max: 2, price_per_hour: 0}", "scaling.price_per_hour"),
        ("{max: 2, price_per_hour: 1.5}", "scaling.price_per_hour: expected scaling.budget_per_hour too"),
        ("{max: 2, budget_per_hour: 9.0}", "scaling.budget_per_hour: expected scaling.price_per_hour too"),
        (
            "{min: 3, max: 4, budget_per_hour: 6.0, price_per_hour: 2.5}",
            "p.yaml:7: scaling.budget_per_hour: 6 pays for 2 replicas at 2.5 each, and at least 3 are",
        ),
        ("{max: 4, budget_per_hour: 1.0, price_per_hour: 2.5}", "pays for 0 replicas .* at least 1 are"),
    ],
)
def test_contradicting_settings_are_named_by_key(tmp_path: Path, scaling: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        spec(tmp_path, scaling)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3..1", r"found 3\.\.1: write 1\.\.3"),
        ("0..0", "at least one replica"),
        ("0", "at least one replica"),
        ("many", "a number or a range"),
        ("-1..2", "a number or a range"),
        ("1..2..3", "a number or a range"),
    ],
)
def test_invalid_ranges_are_rejected(text: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        replicas_settings(text)


@given(st.text(max_size=20))
def test_any_text_is_a_range_or_rejected(text: str) -> None:
    try:
        least, most = (int(each.partition("=")[2]) for each in replicas_settings(text))
    except SettingError as error:
        assert str(error).startswith("--replicas: expected")  # noqa: PT017
    else:
        assert 0 <= least <= most > 0


def test_job_with_external_replicas_decides_alone(tmp_path: Path) -> None:
    pipeline = spec(tmp_path, "{max: 2, slo_s: 30}")
    link = published_scaling(pipeline)
    assert link is not None
    assert (link.folder, link.subtasks, link.settings.slo_s) == (None, 2, 30.0)
    call = call_of(pipeline, replicas=FixedReplicas(("http://a:1",)), model="m", scaling=link)
    assert call.scaling is link
    assert call.engine.config.scaled  # type: ignore[attr-defined]
    assert published_scaling(spec(tmp_path)) is None


def test_classes_of_service_reach_the_policy_and_the_operator(tmp_path: Path) -> None:
    scaling = "{max: 9, slo_s: 30, classes: {of: '{{ tier }}', slo_s: {alarm: 5, archive: 3600}}}"
    pipeline = spec(tmp_path, scaling)
    link = published_scaling(pipeline)
    assert link is not None
    assert [(each.name, each.slo_s) for each in link.settings.classes] == [
        ("default", 30.0),
        ("alarm", 5.0),
        ("archive", 3600.0),
    ]
    call = call_of(pipeline, replicas=FixedReplicas(("http://a:1",)), model="m", scaling=link)
    assert call.classes is not None
    found = [
        call.classes.of(KeyedEvent("i", "", Event(b"", fields), 0)).slo_s
        for fields in ({"tier": "alarm"}, {"tier": "archive"}, {"tier": "default"}, {"tier": "x"}, {})
    ]
    assert found == [5.0, 3600.0, 30.0, 30.0, 30.0]
    # Ten requests in ten seconds, and again: those that may wait for an hour need hardly anybody.
    wanted = []
    for name in ("alarm", "archive"):
        scaler, _ = link.settings.scaler()
        came = ((name, Tokens(100, 50_000, 20_000)),)
        decisions = [scaler.decide(Signals(5.0 * step, ready=1, arrived=came)) for step in range(40)]
        wanted.append(decisions[-1].wanted)
    assert wanted[0] > wanted[1]
