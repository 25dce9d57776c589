"""The files in examples/ are listed, load and run, and match the documentation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.harness.homes import new_home
from tests.harness.run_programs import run_programs
from typer.testing import CliRunner

from forebay.cli import application
from forebay.pipeline.load import load_spec
from forebay.yaml_document import parse_yaml

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
ENGINE = "http://127.0.0.1:8100"
MODEL = "smollm2-135m-instruct"
TIMEOUT_S = 300
PIPELINES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))
TO_THEIR_END = ["triage", "sessions", "summary", "topics", "trends"]
"""Pipelines that only need an engine, and end; tests/test_docs.py runs the first one and that on reviews."""
PROGRAMS = {"first": 2, "orders": 3, "hourly_summaries": 1}
"""Programs that only need an engine, and their minimum number of lines."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the examples, because they write there."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("out", "__pycache__"))
    return tmp_path / "examples"


def test_every_file_is_listed() -> None:
    listed = re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".yaml"}}
    assert sorted(listed) == sorted(files)


def test_the_first_program_is_the_one_in_the_readme() -> None:
    program = (EXAMPLES / "first.py").read_text(encoding="utf-8")
    assert f"```python\n{program}```" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_stateful_program_is_the_one_in_the_documentation() -> None:
    program = (EXAMPLES / "orders.py").read_text(encoding="utf-8")
    orders = program[program.index("class Orders") : program.index("def to_event")].rstrip()
    assert orders in (ROOT / "docs" / "stateful.md").read_text(encoding="utf-8")


def test_the_program_between_topics_is_the_one_in_the_documentation() -> None:
    program = (EXAMPLES / "tickets_between_topics.py").read_text(encoding="utf-8")
    shown = program[program.index("def team(") :].rstrip()
    assert f"```py\n{shown}\n```" in (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_pipeline_on_reviews_is_the_one_in_the_documentation() -> None:
    page = (ROOT / "docs" / "how-to" / "own-file.md").read_text(encoding="utf-8")
    shown, *_ = re.findall(r"^```yaml\n(.*?)^```$", page, re.S | re.M)
    example = (EXAMPLES / "reviews.yaml").read_text(encoding="utf-8")
    assert parse_yaml(shown, "page")[0] == parse_yaml(example, "example")[0]


@pytest.mark.heavy
def test_the_test_of_the_stateful_program_passes(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("name", PIPELINES)
def test_a_dry_run_takes_every_pipeline(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_HOME", str(folder / "home"))
    done = CliRunner().invoke(application(), ["run", str(folder / name), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert f"name: {name.removesuffix('.yaml')}\n" in done.stdout


@pytest.mark.flink
@pytest.mark.parametrize("name", TO_THEIR_END)
def test_pipelines_run(name: str, folder: Path, pipelines: Any) -> None:
    from forebay.testing import Fixed, ReplicaProcess, ReplicaScript

    spec = load_spec(folder / f"{name}.yaml")
    with ReplicaProcess(ReplicaScript(models=(MODEL,), delay=Fixed(0.02))) as replica:
        last = pipelines.run(spec, replica.url)
    assert (last.state, last.dead_letters) == ("FINISHED", 0)
    assert list((folder / "out" / name).glob("part-*.jsonl"))


@contextmanager
def scripted(names: Iterable[str], folder: Path, **replaced: str) -> Iterator[dict[str, Path]]:
    """Copies of the programs with scripted engines; each engine was called by the end."""
    from forebay.testing import Fixed, ReplicaScript, ReplicaThread

    files: dict[str, Path] = {}
    with ExitStack() as stack:
        replicas = {}
        for name in names:
            script = ReplicaScript(models=(MODEL,), delay=Fixed(0.02))
            replicas[name] = stack.enter_context(ReplicaThread(script))
            examples = folder / name / "examples"
            shutil.copytree(EXAMPLES, examples, ignore=shutil.ignore_patterns("out", "__pycache__"))
            files[name] = examples / f"{name}.py"
            text = files[name].read_text(encoding="utf-8").replace(ENGINE, replicas[name].url)
            for old, new in replaced.items():
                text = re.sub(rf'^{old} = ".*"$', f'{old} = "{new}"', text, flags=re.M)
            files[name].write_text(text, encoding="utf-8")
        yield files
        assert [name for name in files if not replicas[name].report().completed] == []


@pytest.mark.long
@pytest.mark.flink
def test_programs_run(tmp_path: Path) -> None:
    with scripted(PROGRAMS, tmp_path) as files:
        ran = run_programs(files, new_home(tmp_path / "home"))
    assert {name: end.error for name, end in ran.items()} == dict.fromkeys(PROGRAMS, "")
    assert [name for name, least in PROGRAMS.items() if len(ran[name].printed) < least] == []


@pytest.mark.long
@pytest.mark.flink
def test_the_programs_with_kafka_run(
    tmp_path: Path, node: Any, topic: Callable[..., str], kafka_jar: Path
) -> None:
    from benchmarks.topic_client import consume_committed, produce

    home = new_home(tmp_path / "home", kafka_jar.parent)
    tickets = [orjson.loads(line) for line in (EXAMPLES / "tickets.jsonl").read_bytes().splitlines()]
    names = {name: topic() for name in ("TOPIC", "TICKETS", "TEAMS", "DEAD")}
    records = [{"value": orjson.dumps(ticket), "partition": 0} for ticket in tickets]
    records.append({"value": b"not JSON", "key": "bad", "partition": 0})
    produce(node.bootstrap, names["TICKETS"], records)
    programs = ["tickets_to_kafka", "tickets_between_topics"]
    with scripted(programs, tmp_path, KAFKA=node.bootstrap, **names) as files:
        between = files["tickets_between_topics"]
        text = between.read_text(encoding="utf-8")
        between.write_text(text.replace('start="earliest"', 'start="earliest", until_latest=True'))
        ran = run_programs(files, home)
    assert {name: end.error for name, end in ran.items()} == dict.fromkeys(programs, "")

    def written(name: str) -> list[tuple[bytes, Any]]:
        return [
            (each.key(), orjson.loads(each.value()))
            for each in consume_committed(node.bootstrap, names[name])
        ]

    teams = {"billing", "network", "account", "other"}
    answers = [value for _, value in written("TOPIC")]
    assert sorted(each["id"] for each in answers) == sorted(ticket["id"] for ticket in tickets)
    assert {each["answer"]["team"] for each in answers} <= teams
    assert sorted((key.decode(), value["ticket"]) for key, value in written("TEAMS")) == sorted(
        (ticket["user"], ticket["id"]) for ticket in tickets
    )
    assert {value["team"] for _, value in written("TEAMS")} <= teams
    ((key, _),) = written("DEAD")
    assert key == b"bad"
