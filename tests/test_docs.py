"""The documentation is correct: its commands parse, its pipelines load, its Python runs."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from benchmarks.__main__ import application as benchmarks
from tests.harness.homes import new_home
from tests.harness.run_programs import run_programs

import forebay
import forebay.testing
from forebay.apps.summaries.settings import WHY
from forebay.apps.trends.reason import UNSUPPORTED
from forebay.cli import application
from forebay.deploy.kubernetes import DeploymentSpec
from forebay.deploy.ray.config import RayFleetSpec
from forebay.documents import check_document
from forebay.errors import EngineError, ForebayError, RecordError
from forebay.gateway.spec import GatewaySpec
from forebay.pipeline.load import parse_spec
from forebay.yaml_document import parse_yaml

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ENGINE = "http://127.0.0.1:8100"
MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)
    name = page.relative_to(ROOT).as_posix()
    all_ = [Block(name, text.count("\n", 0, m.start()) + 2, m[1], m[2]) for m in found]
    return [block for block in all_ if block.language in languages]


def commands() -> list[tuple[str, list[str]]]:
    """Each command line in the pages, with its place, as words; without prompt and variables."""
    found = []
    for page in PAGES:
        for block in blocks(page, "console", "bash", "sh"):
            for line in block.text.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                while words:
                    end = words.index("|") if "|" in words else len(words)
                    words, piped = words[:end], words[end + 1 :]
                    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                        words = words[1:]
                    if words:
                        found.append((str(block), words))
                    words = piped
    return found


OTHERS = {"vllm", "jq", "git", "cd", "source", "cat", "python3", "pip", "docker", "kubectl", "helm"}
COMMANDS = commands()
YAML = [block for page in PAGES for block in blocks(page, "yaml")]
WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]


def parse(words: list[str], app: typer.Typer | None = None) -> None:
    """Parse a command line of `forebay`, or of `app`, down to the last option; runs nothing.

    Raises `WrongCommand` if the application would refuse it.
    """
    command: Any = typer.main.get_command(app or application())
    context: Any = None
    try:
        while True:
            context = command.make_context(command.name, list(words), parent=context)
            if not hasattr(command, "resolve_command"):
                return
            rest = [*context._protected_args, *context.args]
            if not rest and command.invoke_without_command:
                return
            _, command, words = command.resolve_command(context, rest)
    except Exception as error:
        # Older versions of Typer raise click's exceptions, newer ones their own.
        if hasattr(error, "exit_code"):
            raise WrongCommand(" ".join(map(str, words))) from error
        raise


class WrongCommand(Exception):
    """The application does not know a command, an option or a value."""


PIPELINE = {
    "name": "triage",
    "source": {"type": "jsonl", "path": "tickets.jsonl"},
    "prompt": "Which team should take this ticket? {{ text }}",
    "sink": {"type": "jsonl", "path": "out"},
}
DEPLOYMENT = {
    "pipeline": {"image": "registry.example/team/forebay-pipeline:1", "state": "s3://my-bucket/triage"},
    "engine": {"image": "vllm/vllm-openai:v0.32.0", "model": "Qwen/Qwen2.5-1.5B-Instruct"},
}


def completed(base: dict[str, Any], shown: Any) -> Any:
    """A block that shows only the keys that it is about, with the other keys of `base`."""
    if not isinstance(shown, dict) or "type" in shown:
        return shown
    return base | {key: completed(base.get(key, {}), value) for key, value in shown.items()}


def test_documentation_has_examples_to_check() -> None:
    assert len(PAGES) > 10
    assert len(COMMANDS) > 20
    assert len(YAML) > 10
    assert len(WITH_PYTHON) > 3
    assert {block.page for block in ON_FILES} >= ALWAYS_RUN


@pytest.mark.heavy
@pytest.mark.parametrize(("place", "words"), COMMANDS, ids=[f"{p} {' '.join(w)[:40]}" for p, w in COMMANDS])
def test_commands_exist(place: str, words: list[str]) -> None:
    name = Path(words[0]).name
    if name == "forebay":
        parse(words[1:])
    elif name == "make":
        makefile = (ROOT / "Makefile").read_text()
        targets = re.findall(r"^([\w-]+):", makefile, re.M)
        variables = [word.partition("=")[0] for word in words[1:] if "=" in word]
        assert {word for word in words[1:] if "=" not in word} <= set(targets)
        assert all(f"$({variable})" in makefile for variable in variables)
    elif words[:2] == ["python", "-m"]:
        if words[2] == "benchmarks":
            parse(words[3:], benchmarks())
            return
        assert words[2].startswith(("forebay.", "benchmarks."))
        subprocess.run([sys.executable, "-m", words[2], "--help"], check=True, capture_output=True)
    elif name == "pytest":
        assert all((ROOT / word).exists() for word in words[1:] if word.startswith("tests"))
    elif words[:2] == ["pip", "install"]:
        if words[2].startswith("./"):
            assert (ROOT / words[2] / "pyproject.toml").is_file()
            return
        extra = re.fullmatch(r"forebay\[([\w-]+)\]", words[2])
        assert extra
        assert re.search(rf"^{extra[1]} = \[", (ROOT / "pyproject.toml").read_text(), re.M)
    else:
        assert name in OTHERS, f"{place}: what is {name}?"


PYTHON = [block for page in PAGES for block in blocks(page, "python")]
IMPORTS = re.compile(r"^\s*(?:from|import) (forebay[\w.]*)", re.M)
PUBLIC = {"forebay", "forebay.errors", "forebay.extend", "forebay.testing"}


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_examples_import_public_names_only(block: Block) -> None:
    assert set(IMPORTS.findall(block.text)) <= PUBLIC


@pytest.mark.heavy
@pytest.mark.parametrize("block", YAML, ids=str)
def test_pipelines_load(
    block: Block, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    value, _ = parse_yaml(block.text, str(block))
    if block.page == "docs/how-to/extend.md":
        monkeypatch.syspath_prepend(str(request.getfixturevalue("example_extension")))
    if block.page == "docs/gateway.md" or "keys" in value:
        value = {"engine": ["http://replica"], **value}
        check_document(GatewaySpec, value, what="gateway", name=str(block))
    elif block.page in ("docs/how-to/kubernetes.md", "docs/deployment.md") and "source" not in value:
        whole = value if "name" in value else completed(DEPLOYMENT, value)
        check_document(DeploymentSpec, whole, what="deployment", name=str(block))
    elif block.page == "docs/how-to/ray.md" and "source" not in value:
        check_document(RayFleetSpec, value, what="Ray fleet", name=str(block))
    else:
        parse_spec(value if "name" in value else completed(PIPELINE, value))


def test_the_first_pipeline_is_the_one_in_the_readme() -> None:
    first = (ROOT / "examples" / "first.yaml").read_text(encoding="utf-8")
    assert first in {block.text for block in blocks(ROOT / "README.md", "yaml")}


def test_the_page_on_extensions_shows_the_package_in_the_examples() -> None:
    page, package = ROOT / "docs" / "how-to" / "extend.md", ROOT / "examples" / "extension"
    files = {file.name: file.read_text(encoding="utf-8") for file in package.rglob("[a-z]*.py")}
    shown = [block.text for block in blocks(page, "python")]
    assert {name for name, text in files.items() if text in shown} == {
        "log_files.py",
        "digest.py",
        "sticky.py",
    }
    assert len(shown) == 3
    (entry_points,) = blocks(page, "toml")
    assert entry_points.text in (package / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r"`(examples/extension/[\w/]+\.py)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).is_file()] == []
    assert len(named) + len(shown) == len(files)


@pytest.mark.parametrize("block", [b for page in PAGES for b in blocks(page, "json")], ids=str)
def test_json_examples_are_valid(block: Block) -> None:
    for line in block.text.splitlines():
        json.loads(line)


def anchors(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    named = re.findall(r'<a id="([\w-]+)"', text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}.union(named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_are_valid(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target} does not exist"
        assert not anchor or anchor in anchors(file), f"{target}: no such heading"


@pytest.mark.heavy
def test_site_has_every_page_and_no_broken_link(tmp_path: Path) -> None:
    zensical = Path(sys.executable).with_name("zensical")
    if not zensical.exists():
        pytest.skip("zensical is for Python 3.11 and newer")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    built = subprocess.run(
        [zensical, "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    site = tmp_path / "build" / "site"
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert {Path("index.html") if page.stem == "README" else page for page in pages} <= {
        page.relative_to(site) for page in site.rglob("*.html")
    }
    index = (site / "search.json").read_text(encoding="utf-8")
    assert [name for name in (*forebay.__all__, *forebay.testing.__all__) if name not in index] == []


def subclasses(base: type[ForebayError]) -> set[type[ForebayError]]:
    return {base}.union(*(subclasses(each) for each in base.__subclasses__()))


def test_architecture_page_names_existing_files() -> None:
    table = (
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Where to find what")[2]
    )
    files = re.findall(r"`([\w/]+\.py)`", table)
    assert len(files) > 30
    assert [file for file in files if not (ROOT / "src" / "forebay" / file).is_file()] == []


def test_every_cause_of_a_dead_letter_is_explained() -> None:
    text = (ROOT / "docs" / "how-to" / "dead-letters.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(\w+)` \|", text, re.M))
    errors = subclasses(RecordError) | subclasses(EngineError)
    shipped = {each.cause for each in errors if each.__module__ == "forebay.errors"}
    assert told == shipped | set(WHY) | {UNSUPPORTED}


@pytest.mark.heavy
@pytest.mark.parametrize("words", [["--help"], ["doctor", "--json"], ["bench", "--help"]], ids=" ".join)
def test_cheap_commands_run(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forebay", *words], capture_output=True, text=True, timeout=400, check=False
    )
    # 1: something is missing on this machine, and doctor reports it.
    assert done.returncode == 0 or (words[0] == "doctor" and done.returncode == 1), done.stderr
    if words[0] == "doctor":
        assert json.loads(done.stdout)["findings"]


REVIEWS = [
    ["review_id", "posted_at", "title", "text"],
    *([f"R-{i}", f"{i + 1:02}/03/2026 08:30", f"Stay {i}", 'Noisy, "very" noisy'] for i in range(20)),
]
ALWAYS_RUN = {"README.md", "docs/how-to/own-file.md"}
ON_FILES = [
    block
    for block in YAML
    if re.search(r"path: (tickets\.jsonl|reviews\.csv)\b", block.text) and "api_key" not in block.text
]


@pytest.mark.flink
@pytest.mark.parametrize(
    "block",
    [
        # Of the others, `test_pipelines_load` reads each.
        pytest.param(block, id=str(block), marks=[] if block.page in ALWAYS_RUN else pytest.mark.slow)
        for block in ON_FILES
    ],
)
def test_pipelines_on_local_files_run(block: Block, pipelines: Any) -> None:
    from forebay.testing.replica import ReplicaProcess, ReplicaScript
    from forebay.testing.script import Fixed

    tickets = (ROOT / "examples" / "tickets.jsonl").read_bytes()
    (pipelines.folder / "tickets.jsonl").write_bytes(tickets)
    with (pipelines.folder / "reviews.csv").open("w", newline="") as file:
        csv.writer(file).writerows(REVIEWS)
    spec = parse_spec(parse_yaml(block.text, str(block))[0], base=pipelines.folder)
    with ReplicaProcess(ReplicaScript(models=(MODEL,), delay=Fixed(0.02))) as replica:
        last = pipelines.run(spec, replica.url)
    rows = len(REVIEWS) - 1 if "reviews.csv" in block.text else len(tickets.splitlines())
    assert (last.state, last.results, last.dead_letters) == ("FINISHED", rows, 0)


@pytest.mark.flink
@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(WITH_PYTHON[:1], id="README"),
        pytest.param(WITH_PYTHON[1:], id="docs", marks=pytest.mark.slow),
    ],
)
def test_python_runs(pages: list[Path], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    from forebay.testing.replica import ReplicaScript, ReplicaThread
    from forebay.testing.script import Fixed
    from forebay.testing.waiting import wait_until

    files, replicas, folder = {}, {}, tmp_path
    kafka = any("_kafka(" in block.text for page in pages for block in blocks(page, "python"))
    home = new_home(folder / "home", request.getfixturevalue("kafka_jar").parent if kafka else None)
    with ExitStack() as stack:
        for number, page in enumerate(pages):
            script = ReplicaScript(models=(MODEL,), delay=Fixed(0.05))
            replica = replicas[page] = stack.enter_context(ReplicaThread(script))
            examples = folder / str(number) / "examples"
            shutil.copytree(ROOT / "examples", examples, ignore=shutil.ignore_patterns("out", "extension"))
            texts = [block.text.replace(ENGINE, replica.url) for block in blocks(page, "python")]
            files[str(page)] = examples / "program.py"
            files[str(page)].write_text("\n".join(texts), encoding="utf-8")
        ran = run_programs(files, home)
        # A replica may notice aborted requests of a program only after its end.
        wait_until(lambda: not any(replica.report().in_flight for replica in replicas.values()))
        answers = {str(page): replicas[page].report().completed for page in pages}
    assert {name: each.error for name, each in ran.items() if each.error} == {}
    asking = {str(page): any(ENGINE in block.text for block in blocks(page, "python")) for page in pages}
    assert {name: count > 0 for name, count in answers.items()} == asking
