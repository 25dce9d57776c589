"""`forebay bench serve`: put a server under load."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from forebay.cli.bench_figures import run_progress, show_runs
from forebay.cli.options import (
    LOAD,
    REPORT,
    Burstiness,
    BurstsOf,
    EvenGaps,
    HtmlFile,
    Processes,
    Ramp,
    Speed,
    TraceFile,
    option,
)
from forebay.cli.output import (
    JsonFile,
    blamed,
    check_outputs,
    errors_console,
    json_path,
    results_console,
    shows_text,
    write_file,
    write_json,
)
from forebay.errors import ForebayError, SettingError
from forebay.settings import SecretRef, read_secret

if TYPE_CHECKING:
    from forebay.bench.metrics import RequestSlo
    from forebay.bench.report.document import MeasuredRun

INTERRUPTED_STATUS = 130
INVALID_STATUS = 1
ENV_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class Protocol(str, Enum):
    openai = "openai"
    chat = "chat"
    tgi = "tgi"
    triton = "triton"
    triton_trtllm = "triton-trtllm"


SERVER, REQUESTS = "Server", "What to send"


def serve(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8100.")],
    *,
    protocol: Annotated[
        Protocol, option("openai: /v1/completions; chat: /v1/chat/completions; tgi; triton.", panel=SERVER)
    ] = Protocol.openai,
    model: Annotated[str | None, option("Model name, if the server has more than one.", panel=SERVER)] = None,
    api_key_env: Annotated[
        str | None,
        option("Environment variable that holds the server's API key.", panel=SERVER, metavar="NAME"),
    ] = None,
    extra: Annotated[
        str | None,
        option("Extra fields of each request, such as '{\"top_p\": 0.9}'.", panel=SERVER, metavar="JSON"),
    ] = None,
    timeout: Annotated[float, option("Timeout of one answer, in seconds.", panel=SERVER)] = 600.0,
    rate: Annotated[
        list[float] | None,
        option("Requests per second (Poisson); inf: all at once. May be repeated: one run each.", panel=LOAD),
    ] = None,
    concurrency: Annotated[
        list[int] | None,
        option(
            "Requests at a time, in a closed loop (default: 8). May be repeated: one run each.", panel=LOAD
        ),
    ] = None,
    burstiness: Burstiness = None,
    constant: EvenGaps = False,
    ramp: Ramp = None,
    bursts: BurstsOf = None,
    trace: TraceFile = None,
    speed: Speed = 1.0,
    requests: Annotated[
        int | None, option("Number of requests (default: 100, or all in the file).", panel=LOAD)
    ] = None,
    seconds: Annotated[
        float | None, option("With --rate, instead of --requests: duration of the load.", panel=LOAD)
    ] = None,
    repeats: Annotated[int, option("Runs per load, each with another seed.", panel=LOAD, min=1, max=100)] = 1,
    seed: Annotated[int, option("Seed of times and lengths.", panel=LOAD)] = 0,
    prompt_tokens: Annotated[
        str, option("Length of prompts: 512, 100-200 or exp:MEAN:LIMIT.", panel=REQUESTS, metavar="LENGTHS")
    ] = "512",
    output_tokens: Annotated[
        str | None,
        option("Length of answers, in the same format (default: 128).", panel=REQUESTS, metavar="LENGTHS"),
    ] = None,
    exact: Annotated[
        bool | None,
        option("Whether answers have exactly or at most that length.", "--exact/--at-most", panel=REQUESTS),
    ] = None,
    prefix: Annotated[
        str | None,
        option("Each prompt starts with one of GROUPS prefixes.", panel=REQUESTS, metavar="GROUPS:TOKENS"),
    ] = None,
    turns: Annotated[
        int | None, option("Sessions of this many turns; prompts contain earlier ones.", panel=REQUESTS)
    ] = None,
    data: Annotated[
        Path | None, option("JSON lines with prompt and output_tokens.", panel=REQUESTS, metavar="FILE")
    ] = None,
    sharegpt: Annotated[
        Path | None, option("Conversations in ShareGPT's format.", panel=REQUESTS, metavar="FILE")
    ] = None,
    slo_ttft_ms: Annotated[float | None, option("Objective: time to the first token.", panel=REPORT)] = None,
    slo_tpot_ms: Annotated[float | None, option("Objective: time per further token.", panel=REPORT)] = None,
    slo_e2el_ms: Annotated[float | None, option("Objective: time to the whole answer.", panel=REPORT)] = None,
    process: Processes = None,
    json: JsonFile = None,
    records: Annotated[
        Path | None, option("Write a line of JSON per request, as AIPerf does.", panel=REPORT, metavar="FILE")
    ] = None,
    html: HtmlFile = None,
) -> None:
    """Measure a server under load: the arrival time of every token of every request.

    Times count from when a request was due. The exit status is 1 if the figures are not valid, and 130 after
    Ctrl-C; what was measured until then is reported.
    """
    from forebay.bench.load.schedules import MAX_SECONDS
    from forebay.bench.report.document import Report, requests_path
    from forebay.bench.serve import LoadOptions, TargetOptions, run_provenance, run_sources, serve_runs

    check_outputs(
        json,
        {"--records": records, "--html": html},
        {"--data": data, "--sharegpt": sharegpt, "--trace": trace},
        ("requests", requests_path),
    )
    if not 0 < timeout <= MAX_SECONDS:
        raise SettingError(f"--timeout: expected more than 0 seconds, found {timeout:g}")
    processes = read_processes(process or ())
    key = _api_key(api_key_env)
    target = TargetOptions(
        url=url, protocol=protocol.value, model=model, api_key=key, extra=_extra(extra)
    ).target()
    if protocol in (Protocol.tgi, Protocol.triton_trtllm):
        # Neither can be asked for answers of an exact length.
        exact = exact or False
    plans = LoadOptions(
        rates=rate or (),
        concurrencies=concurrency or (),
        burstiness=burstiness,
        constant=constant,
        ramp=ramp,
        bursts=bursts,
        trace=trace,
        speed=speed,
        requests=requests,
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        exact=exact,
        prefix=prefix,
        turns=turns,
        data=data,
        conversations=sharegpt,
        seed=seed,
        repeats=repeats,
    ).plan(texts=protocol is not Protocol.openai)
    slo = _slo(slo_ttft_ms, slo_tpot_ms, slo_e2el_ms)
    found: list[MeasuredRun] = []
    failure: BaseException | None = None
    try:
        with run_progress(errors_console(), len(plans)) as on_progress:
            for measured in serve_runs(
                target,
                plans,
                slo=slo,
                timeout_s=timeout,
                on_progress=on_progress,
                origin=run_provenance(url, key, data=trace or data or sharegpt, processes=processes),
                sources=lambda: run_sources(url, key, processes),
            ):
                found.append(measured)
    except (ForebayError, KeyboardInterrupt) as error:
        if not found:
            raise
        # Write the earlier runs before raising the error.
        failure = error
    report = Report("serve", tuple(found))
    _write(report, json, records, html)
    if shows_text(json):
        show_runs(found, results_console())
    if isinstance(failure, ForebayError):
        raise failure
    if failure is not None or any(not measured.run.complete for measured in found):
        raise typer.Exit(INTERRUPTED_STATUS)
    if any(measured.verdict is not None and not measured.verdict.valid for measured in found):
        raise typer.Exit(INVALID_STATUS)


def _write(report: Any, json: str | None, records: Path | None, html: Path | None) -> None:
    from forebay.bench.report.document import document, write_report
    from forebay.bench.report.formats import aiperf_records
    from forebay.bench.report.html import report_page
    from forebay.files import write_atomic

    if (path := json_path(json)) is not None:
        write_report(path, report)
    else:
        write_json(json, document(report))
    try:
        if records is not None:
            lines = (line for measured in report.runs for line in aiperf_records(measured.run))
            write_atomic(records, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    except OSError as error:
        raise SettingError(f"cannot write the report: {error.strerror}") from None
    if html is not None:
        write_file("--html", html, report_page(report).encode())


def _slo(ttft_ms: float | None, tpot_ms: float | None, e2el_ms: float | None) -> RequestSlo | None:
    from forebay.bench.metrics import RequestSlo

    given = {"--slo-ttft-ms": ttft_ms, "--slo-tpot-ms": tpot_ms, "--slo-e2el-ms": e2el_ms}
    for name, value in given.items():
        if value is not None and not 0 < value < 1e9:
            raise SettingError(f"{name}: expected more than 0 milliseconds, found {value:g}")
    seconds = [None if value is None else value / 1000 for value in given.values()]
    return None if seconds == [None] * 3 else RequestSlo(*seconds)


def read_processes(words: Sequence[str]) -> dict[str, int]:
    """Parse `--process`. Raises `SettingError`."""
    from forebay.processes import birth_s

    found = {}
    for word in words:
        name, _, number = word.partition("=")
        if not name.isidentifier() or not number.isdecimal() or not 0 < int(number) < 1 << 31:
            raise SettingError(f"--process: expected NAME=PID, such as engine=1234, found {word[:80]!r}")
        if birth_s(int(number)) is None:
            raise SettingError(f"--process {name}={int(number)}: there is no such process")
        found[name] = int(number)
    return found


def _api_key(name: str | None) -> str | None:
    if name is None:
        return None
    if not ENV_NAME.fullmatch(name):
        # Not quoted: the user may have passed the key itself.
        raise SettingError("--api-key-env: expected the name of an environment variable")
    with blamed("--api-key-env"):
        return read_secret(SecretRef(env=name))


def _extra(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    found = None
    with suppress(orjson.JSONDecodeError):
        found = orjson.loads(text)
    if not isinstance(found, dict):
        raise SettingError("--extra: expected a JSON object")
    return found
