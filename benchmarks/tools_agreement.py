"""Compares `forebay bench` with independent tools: each sends the same requests to one engine, in
turn."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from forebay.bench.client import measure
from forebay.bench.load.schedules import ClosedLoop, make_load
from forebay.bench.load.workloads import Exactly, RandomTokens
from forebay.bench.metrics import run_figures
from forebay.bench.records import LoadRun
from forebay.bench.targets.openai import OpenAiOptions, OpenAiTarget
from forebay.bench.verdict import judge
from forebay.engine.replica import list_models
from forebay.errors import EngineError, LaunchError, SettingError, SetupError

OURS = "forebay"
FIGURES = ("ttft_ms", "tpot_ms", "output_tokens_per_s")
MAX_DIFFERENCE = 0.03
MAX_PROMPT_ERROR = 0.03
MIN_ANSWERED = 0.9
MIN_TOOLS = 2
TOOL_TIMEOUT_S = 300.0
VLLM_BENCH = (
    "import argparse\n"
    "from vllm.benchmarks.serve import add_cli_args, main\n"
    "parser = argparse.ArgumentParser()\n"
    "add_cli_args(parser)\n"
    "main(parser.parse_args())\n"
)
ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "VLLM_NO_USAGE_STATS": "1"}
OFFLINE = {"HF_HUB_OFFLINE": "1"}
"""Not for AIPerf, which then accepts no folder for a tokenizer."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What each tool requests in each turn."""

    requests: int = 12
    concurrency: int = 1
    prompt_tokens: int = 512
    output_tokens: int = 32


@dataclass(frozen=True, slots=True)
class Server:
    """The engine under load, and its tokenizer."""

    url: str
    model: str
    tokenizer: Path


def server_at(url: str, tokenizer: Path) -> Server:
    """The engine at `url`, which serves one model."""
    if not tokenizer.is_dir():
        raise SettingError(f"--tokenizer: {tokenizer} is not a folder")
    try:
        names = [model.name for model in asyncio.run(list_models(url))]
    except EngineError as error:
        raise SettingError(f"--engine: {error}") from None
    if len(names) != 1:
        raise SettingError(f"--engine: expected an engine that serves one model, found {', '.join(names)}")
    return Server(url.rstrip("/"), names[0], tokenizer.resolve())


@dataclass(frozen=True, slots=True)
class ToolFigures:
    """Figures of one tool in one turn: mean TTFT and mean TPOT, both from the send, and the token rate."""

    ttft_ms: float
    tpot_ms: float
    output_tokens_per_s: float
    requests: int
    prompt_tokens: int
    output_tokens: int


Tool = Callable[[Shape, Server, int, Path], ToolFigures]
"""Measures with this seed; files go to the folder."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of another tool against ours. `ours` and `theirs`: medians over all turns.
    `difference`: theirs over ours in the same turn, minus 1; the median over all turns, with
    minimum and maximum."""

    tool: str
    figure: str
    ours: float
    theirs: float
    difference: float
    least: float
    most: float

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= MAX_DIFFERENCE


def forebay_bench(shape: Shape, server: Server, seed: int, folder: Path) -> ToolFigures:
    """Our own client."""
    workload = RandomTokens(Exactly(shape.prompt_tokens), Exactly(shape.output_tokens))
    load = make_load(ClosedLoop(shape.concurrency), workload, shape.requests, seed=seed)
    target = OpenAiTarget(server.url, OpenAiOptions(model=server.model, extensions=True))
    return figures_of(measure(target, load))


def figures_of(run: LoadRun) -> ToolFigures:
    """Service times, like the other tools."""
    verdict = judge(run)
    if not verdict.valid:
        raise LaunchError(f"our own run is INVALID: {'; '.join(verdict.reasons)}")
    found = run_figures(run)
    assert found.output_tokens_per_s is not None
    return ToolFigures(
        ttft_ms=found.distributions["service_ttft"].mean * 1000,
        tpot_ms=found.distributions["tpot"].mean * 1000,
        output_tokens_per_s=found.output_tokens_per_s,
        requests=found.answered,
        prompt_tokens=round(found.distributions["prompt_tokens"].mean * found.answered),
        output_tokens=round(found.distributions["output_tokens"].mean * found.answered),
    )


def vllm_bench(python: Path) -> Tool:
    def run(shape: Shape, server: Server, seed: int, folder: Path) -> ToolFigures:
        options = {
            "--backend": "openai",
            "--base-url": server.url,
            "--endpoint": "/v1/completions",
            "--model": server.model,
            "--tokenizer": server.tokenizer,
            "--dataset-name": "random",
            "--random-input-len": shape.prompt_tokens,
            "--random-output-len": shape.output_tokens,
            "--random-range-ratio": 0,
            "--num-prompts": shape.requests,
            "--max-concurrency": shape.concurrency,
            "--temperature": 0,
            "--seed": seed,
            "--result-dir": folder,
            "--result-filename": "vllm.json",
        }
        flags = ("--ignore-eos", "--save-result", "--disable-tqdm")
        _run("vllm bench serve", [python, "-c", VLLM_BENCH, *_words(options), *flags], folder, OFFLINE)
        return read_vllm(_read(folder / "vllm.json"))

    return run


def read_vllm(found: Mapping[str, Any]) -> ToolFigures:
    return ToolFigures(
        ttft_ms=found["mean_ttft_ms"],
        tpot_ms=found["mean_tpot_ms"],
        output_tokens_per_s=found["output_throughput"],
        requests=found["completed"],
        prompt_tokens=found["total_input_tokens"],
        output_tokens=found["total_output_tokens"],
    )


def aiperf(command: Path) -> Tool:
    def run(shape: Shape, server: Server, seed: int, folder: Path) -> ToolFigures:
        options = {
            "--model": server.model,
            "--tokenizer": server.tokenizer,
            "--url": server.url,
            "--endpoint-type": "completions",
            "--concurrency": shape.concurrency,
            "--request-count": shape.requests,
            "--num-prompts": shape.requests,
            "--isl": shape.prompt_tokens,
            "--isl-stddev": 0,
            "--osl": shape.output_tokens,
            "--osl-stddev": 0,
            "--extra-inputs": orjson.dumps(
                {"ignore_eos": True, "min_tokens": shape.output_tokens, "temperature": 0}
            ).decode(),
            "--random-seed": seed,
            "--output-artifact-dir": folder,
            "--ui": "none",
        }
        flags = ("--streaming", "--use-server-token-count", "--use-legacy-max-tokens")
        _run("aiperf", [command, "profile", *_words(options), *flags], folder)
        return read_aiperf(_read(folder / "profile_export_aiperf.json"))

    return run


def read_aiperf(found: Mapping[str, Any]) -> ToolFigures:
    requests = round(found["request_count"]["avg"])
    return ToolFigures(
        ttft_ms=found["time_to_first_token"]["avg"],
        tpot_ms=found["inter_token_latency"]["avg"],
        output_tokens_per_s=found["output_token_throughput"]["avg"],
        requests=requests,
        prompt_tokens=round(found["usage_prompt_tokens"]["avg"] * requests),
        output_tokens=round(found["output_sequence_length"]["avg"] * requests),
    )


def guidellm(command: Path) -> Tool:
    def run(shape: Shape, server: Server, seed: int, folder: Path) -> ToolFigures:
        lengths = f"prompt_tokens={shape.prompt_tokens},output_tokens={shape.output_tokens}"
        backend = f"kind=openai_http,target={server.url},model={server.model},request_format=/v1/completions"
        options = {
            "--backend": backend,
            "--profile": f"kind=concurrent,streams={shape.concurrency}",
            "--constraint": f"kind=max_requests,count={shape.requests}",
            "--tokenizer": f"kind=huggingface_auto,model={server.tokenizer}",
            "--data": f"kind=synthetic_text,{lengths}",
            "--seed": f"kind=static,value={seed}",
            "--output": f"kind=json,path={folder / 'guidellm.json'}",
        }
        _run("guidellm", [command, "run", *_words(options), "--disable-console"], folder, OFFLINE)
        return read_guidellm(_read(folder / "guidellm.json"))

    return run


def read_guidellm(found: Mapping[str, Any]) -> ToolFigures:
    """Read guidellm's JSON. Its inter-token latency is our time per output token; its own time per output
    token includes the first token."""
    metrics = found["benchmarks"][0]["metrics"]
    means = {name: metrics[name]["successful"]["mean"] for name in GUIDELLM}
    requests = metrics["request_totals"]["successful"]
    return ToolFigures(
        ttft_ms=means["time_to_first_token_ms"],
        tpot_ms=means["inter_token_latency_ms"],
        output_tokens_per_s=means["output_tokens_per_second"],
        requests=requests,
        prompt_tokens=round(means["prompt_token_count"] * requests),
        output_tokens=round(means["output_token_count"] * requests),
    )


GUIDELLM = (
    "time_to_first_token_ms",
    "inter_token_latency_ms",
    "output_tokens_per_second",
    "prompt_token_count",
    "output_token_count",
)


def measure_agreement(
    tools: Mapping[str, Tool],
    server: Server,
    shape: Shape,
    *,
    turns: int,
    seed: int = 0,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    everyone: dict[str, Tool] = {OURS: forebay_bench, **tools}
    names = list(everyone)
    found: dict[str, list[ToolFigures]] = {name: [] for name in names}
    with TemporaryDirectory(prefix="forebay-tools-") as folder:
        note("warming up")
        forebay_bench(shape, server, seed + turns, Path(folder))
        for turn in range(turns):
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                note(f"turn {turn + 1} of {turns}: {name}")
                files = Path(folder) / f"{turn}-{name}"
                files.mkdir()
                one = everyone[name](shape, server, seed + turn, files)
                check(name, one, shape)
                found[name].append(one)
    return document(found, shape)


def check(name: str, found: ToolFigures, shape: Shape) -> None:
    """Raise `LaunchError` if a tool did not send the requested load."""
    prompts, outputs = found.requests * shape.prompt_tokens, found.requests * shape.output_tokens
    if (
        not MIN_ANSWERED * shape.requests <= found.requests <= shape.requests
        or found.output_tokens != outputs
        or abs(found.prompt_tokens - prompts) > MAX_PROMPT_ERROR * prompts
    ):
        raise LaunchError(
            f"{name}: {found.requests} answers with {found.output_tokens} tokens to prompts of "
            f"{found.prompt_tokens}, and {shape.requests} with {shape.output_tokens} each to "
            f"{shape.prompt_tokens} were asked for"
        )


def document(found: Mapping[str, Sequence[ToolFigures]], shape: Shape) -> dict[str, Any]:
    """The comparison as JSON values; `passed`: enough tools agree in every figure."""
    compared = compare(found)
    agreeing = [
        tool for tool in found if tool != OURS and all(each.agrees for each in compared if each.tool == tool)
    ]
    return {
        "shape": asdict(shape),
        "turns": {tool: [asdict(one) for one in turns] for tool, turns in found.items()},
        "comparison": [{**asdict(each), "agrees": each.agrees} for each in compared],
        "agreeing": agreeing,
        "passed": len(agreeing) >= MIN_TOOLS,
    }


def compare(found: Mapping[str, Sequence[ToolFigures]]) -> list[Comparison]:
    compared = []
    for tool, turns in found.items():
        if tool == OURS:
            continue
        for figure in FIGURES:
            ours = [getattr(one, figure) for one in found[OURS]]
            theirs = [getattr(one, figure) for one in turns]
            ratios = [their / our - 1 for our, their in zip(ours, theirs, strict=True)]
            compared.append(
                Comparison(
                    tool, figure, median(ours), median(theirs), median(ratios), min(ratios), max(ratios)
                )
            )
    return compared


def _words(options: Mapping[str, object]) -> list[str]:
    return [str(word) for pair in options.items() for word in pair]


def _run(
    name: str, command: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None
) -> None:
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise SetupError(f"{name}: there is no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{name} did not end within {TOOL_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise LaunchError(f"{name} failed: {(done.stderr or done.stdout).strip()[-2000:]}")


def _read(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise LaunchError(f"{path.name} was not written as expected: {error}") from None
