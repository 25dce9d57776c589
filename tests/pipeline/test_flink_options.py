"""Flink's options that a pipeline file may set, and those that would break its guarantees."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import SettingError
from forebay.flink.environment import FlinkConfig, flink_options
from forebay.pipeline.flink_options import DATA, OWNED, TUNING, is_option, option_names, owned
from forebay.pipeline.load import load_spec
from forebay.pipeline.spec import PipelineSpec


def load(folder: Path, **flink: Any) -> PipelineSpec:
    lines = "".join(f"  {key}: {value}\n" for key, value in flink.items())
    file = folder / "p.yaml"
    file.write_text(
        f"name: a\nsource: {{type: generator}}\nprompt: x\nsink: {{type: stdout}}\nflink:\n{lines}"
    )
    return load_spec(file)


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("s3.secret-key", "AWS_SECRET_ACCESS_KEY"),
        ("fs.s3a.access.key", "AWS_ACCESS_KEY_ID"),
        ("execution.checkpointing.dir", "checkpoint.dir"),
        ("state.checkpoints.dir", "checkpoint.dir"),
        ("execution.checkpointing.interval", "checkpoint.interval_s"),
        ("execution.checkpointing.interval-during-backlog", "exactly-once"),
        ("execution.checkpointing.mode", "exactly-once"),
        ("execution.checkpointing.externalized-checkpoint-retention", "exactly-once"),
        ("execution.checkpointing.checkpoints-after-tasks-finish", "exactly-once"),
        ("execution.checkpointing.timeout", "checkpoint.timeout_s"),
        ("execution.state-recovery.ignore-unclaimed-state", "newest checkpoint"),
        ("execution.savepoint.path", "newest checkpoint"),
        ("execution.savepoint-restore-mode", "newest checkpoint"),
        ("rest.port", "--cluster"),
        ("$internal.pipeline.job-id", "Flink's own"),
        ("execution.runtime-mode", "stream"),
        ("python.execution-mode", "Python runs inside Flink's JVM"),
        ("parallelism.default", "key parallelism"),
        ("pipeline.max-parallelism", "fixed"),
    ],
)
def test_options_that_forebay_owns_are_rejected_with_the_fix(tmp_path: Path, key: str, instead: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(tmp_path, **{"taskmanager.numberOfTaskSlots": 1, key: 1})
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{tmp_path / 'p.yaml'}:7: flink.{key}: expected ")
    assert instead in line


@pytest.mark.parametrize(
    "key",
    [
        *(key for key in TUNING if is_option(key)),
        "execution.checkpointing.file-merging.enabled",
        "execution.checkpointing.unaligned.enabled",
        "restart-strategy.type",
        "restart-strategy",
        "metrics.reporter.prom.port",
        "python.fn-execution.bundle.time",
        "state.backend.mine.option",
        "pipeline.object-reuse",
        "table.exec.mini-batch.enabled",
        "external-resource.gpu.amount",
        "taskmanager.memory.managed.consumer-weights.OPERATOR",
    ],
)
def test_other_options_are_passed_on(tmp_path: Path, key: str) -> None:
    assert owned(key) is None
    assert load(tmp_path, **{key: 1}).flink == {key: 1}


def test_options_needed_for_exactness_cannot_be_changed(tmp_path: Path) -> None:
    """Every option that the environment sets is either owned or one that may be tuned."""
    may_be_tuned = (
        "python.",
        "execution.buffer-timeout.",
        "heartbeat.",
        "pipeline.object-reuse",
        "restart-strategy.",
    )
    free = {
        key
        for key in flink_options(FlinkConfig(checkpoint_dir=tmp_path, checkpoint_interval_s=1.0))
        if owned(key) is None and not key.startswith((*TUNING, *may_be_tuned, "taskmanager."))
    }
    assert free == set()
    assert all(owned(key) for key in OWNED)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("mode", "Flink does not have"),
        ("xyz", "Flink does not have"),
        ("taskmanager.numberOfTaskSlot", "; did you mean 'taskmanager.numberOfTaskSlots'?"),
        ("metrics.reporters2.x", ""),
    ],
)
def test_unknown_flink_option_is_rejected(tmp_path: Path, key: str, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(tmp_path, **{key: 1})
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'p.yaml'}:6: flink.{key}: expected an option of Flink, found a name")
    assert text.endswith(said)


def test_option_names_equal_those_of_the_installed_flink(tmp_path: Path) -> None:
    assert json.loads(DATA.read_text())["flink"] == version("apache-flink"), "run: make flink-options"
    made = flink_options(FlinkConfig(checkpoint_dir=tmp_path, checkpoint_interval_s=1.0))
    assert not [key for key in made if not is_option(key) and not key.startswith("$")]
    assert not [key for key in TUNING if not is_option(key) and not any(_below(key))]


def _below(key: str) -> list[str]:
    """Options whose names begin with `key`, or that it is an older name of."""
    return [name for name in option_names()[0] if name.startswith(f"{key}.")]
