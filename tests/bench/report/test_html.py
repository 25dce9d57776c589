"""The page: correct, self-contained, escaped and small."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.bench.report.made_runs import SLO, VALID, answered, failed, invalid, made_run, measured
from tests.bench.stream.stream_runs import even, event, lost, stream_run
from tests.pages.documents import ATTACKS, seen

from forebay.bench.metrics import RequestSlo
from forebay.bench.records import Chunk, EngineSample, LoadRun, RequestRecord
from forebay.bench.report.document import MeasuredRun, Report
from forebay.bench.report.html import MAX_DETAILED, report_page
from forebay.bench.report.html_stream import slow_and_usual, stream_page
from forebay.bench.stream.document import measured_stream
from forebay.bench.stream.events import EventSlo
from forebay.bench.stream.records import Killed, MeasuredCheckpoint, StreamRun

ONE = measured(made_run(requests=300), verdict=VALID)
MAX_BYTES = 2_000_000


def page(*runs: MeasuredRun) -> str:
    return report_page(Report("serve", runs))


def words(document: str) -> str:
    return " ".join(" ".join(seen(re.sub(r"<style>.*?</style>", "", document, flags=re.S)).words).split())


def titles(document: str) -> list[str]:
    return [unescape(found) for found in re.findall(r"<(?:h2|h3|figcaption><b)>(.*?)</", document)]


def test_a_run_has_all_its_parts() -> None:
    assert titles(page(ONE)) == [
        "Figures",
        "Failures",
        "Distributions",
        "TTFT",
        "TPOT",
        "Gaps between tokens",
        "E2EL",
        "Over time",
        "Requests",
        "Requests per second",
        "Output tokens per second",
        "TTFT of each request, ms, by when it was due",
        "KV-cache usage",
        "Share of prompt tokens from the prefix cache",
        "Engine: memory, MB",
        "Engine: cores kept busy",
        "GPU 0: share of the time busy",
        "GPU 0: memory, MB",
        "GPU 0: power, W",
        "Requests",
        "From due to done: the 80 around the slowest",
        "The slowest",
        "Provenance",
        "Words",
    ]


@pytest.mark.heavy
def test_verdict_is_first_with_its_reasons() -> None:
    found = words(page(replace(ONE, verdict=invalid("the client was late", "12 requests failed"))))
    assert found.index("✕ INVALID the client was late 12 requests failed") < found.index("requests answered")
    assert "✓ VALID schedule delay: at most 2.1 ms" in words(page(ONE))
    assert "not judged" in words(page(replace(ONE, verdict=None)))


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(made_run(records=()), id="no requests"),
        pytest.param(made_run(records=(failed(0, 1.0), failed(1, 1.0, sent_s=None))), id="all failed"),
        pytest.param(made_run(records=(RequestRecord(0, 1.0, 1.0, 2.0),), samples=()), id="no content"),
        pytest.param(made_run(records=(answered(),), duration_s=0.0), id="no length"),
        pytest.param(
            made_run(records=(RequestRecord(0, 0.0, 0.0, 0.0, chunks=(Chunk(0.0),)),), duration_s=0.0),
            id="zeros",
        ),
        pytest.param(made_run(asked={}, provenance={}, began_at="yesterday"), id="nothing told"),
        pytest.param(made_run(samples=(EngineSample(0.0, {"x": float("nan")}),)), id="not a number"),
    ],
)
def test_page_of_any_run(run: LoadRun) -> None:
    found = page(measured(run))
    assert "nan" not in found.lower().replace("provenance", "")
    assert "Words" in titles(found)


@pytest.mark.heavy
@pytest.mark.parametrize("attack", ATTACKS)
def test_external_text_never_becomes_markup(attack: str) -> None:
    """In every place where a text of a server, a file or a user may be."""

    def told(by: str) -> Report:
        records = (
            answered(0, 1.0, 1.25, group=by, session=by, finish_reason=by),
            failed(1, 2.0, by),
        )
        run = made_run(
            records=records,
            samples=(EngineSample(0.0, {by: 1.0}), EngineSample(1.0, {by: 2.0})),
            provenance={by: by, "model": by, "versions": {by: [by]}, "command": by},
            asked={by: by, "schedule": {"kind": by}, "workload": by},
            began_at=by,
        )
        one = measured(run, verdict=invalid(by))
        return Report(by, (one, one))

    found, plain = seen(report_page(told(attack))), seen(report_page(told("harmless")))
    assert found.tags == plain.tags
    assert found.names == plain.names
    assert found.addresses == []
    assert attack.split(maxsplit=1)[0] in " ".join(found.words)


@pytest.mark.heavy
def test_a_sweep_has_its_curves_its_table_and_some_runs_in_full() -> None:
    runs = [
        measured(made_run(requests=150, rate_per_s=rate, seed=seed), verdict=VALID)
        for rate in (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
        for seed in (0, 1)
    ]
    runs[-1] = replace(runs[-1], verdict=invalid("the rate fell short"))
    found = page(*runs)
    text = words(found)
    assert "✕ INVALID — 1 of 12 runs 60 requests/s: the rate fell short" in text
    assert re.search(r"60 requests/s 2 1 INVALID [\d.,]+ ± ", text)
    assert "Not in the curves, because INVALID: 60 requests/s (1 of 2 runs)." in text
    assert "knee:" in text
    assert found.count('<details class="run">') == 6 <= MAX_DETAILED
    assert [title for title in titles(found) if "throughput" in title] == [
        "TTFT, ms, by throughput",
        "TPOT, ms, by throughput",
        "E2EL, ms, by throughput",
    ]


@pytest.mark.heavy
def test_invalid_runs_are_in_no_curve_and_make_no_knee() -> None:
    rates = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
    runs = [measured(made_run(requests=150, rate_per_s=rate), verdict=VALID) for rate in rates]
    assert "knee:" in words(page(*runs))
    for place in (3, 4, 5):
        runs[place] = replace(runs[place], verdict=invalid("the answers fell behind"))
    found = page(*runs)
    text = words(found)
    assert "knee:" not in text
    assert "Not in the curves, because INVALID: 20 requests/s, 40 requests/s, 60 requests/s." in text
    assert re.search(r"60 requests/s INVALID [\d.,]+ ", text), "the table has all"
    all_invalid = [replace(one, verdict=invalid("late")) for one in runs]
    assert not [title for title in titles(page(*all_invalid)) if "throughput" in title]


@pytest.mark.heavy
def test_a_long_run_and_a_long_sweep_give_a_page_of_bounded_size() -> None:
    long = measured(made_run(requests=10_000, rate_per_s=30, tokens=3))
    assert len(page(long).encode()) < 200_000
    many: Any = [measured(made_run(requests=200, rate_per_s=1.0 + n)) for n in range(60)]
    assert len(page(*many).encode()) < MAX_BYTES


@pytest.mark.heavy
def test_only_loads_that_differ_in_their_rate_are_points_of_one_curve() -> None:
    bursts = [measured(made_run(asked={"schedule": {"kind": "burst"}, "requests": n})) for n in (1, 2, 3)]
    assert not [title for title in titles(page(*bursts)) if "throughput" in title]
    two = [
        measured(made_run(requests=50, rate_per_s=rate, tokens=tokens))
        for tokens in (4, 8)
        for rate in (2.0, 4.0)
    ]
    found = [title for title in titles(page(*two)) if title.startswith("TTFT,")]
    assert found[:2] == ["TTFT, poisson, ms, by throughput", "TTFT, poisson 2, ms, by throughput"]


def test_simultaneous_chunks_do_not_make_an_axis_logarithmic() -> None:
    records = tuple(
        answered(n, n * 1.0, n * 1.0, *(n + 0.1 * i for i in range(1, 9)), n + 0.8 + 1e-6) for n in range(50)
    )
    assert "logarithmic" not in page(measured(made_run(records=records)))
    spread = tuple(answered(n, n * 1.0, n * 1.0, n + 1.2**n / 100, n + 90.0) for n in range(50))
    assert "logarithmic" in page(measured(made_run(records=spread)))


def made(**changes: object) -> StreamRun:
    return stream_run(
        [*even(200), lost(200, 20.0)],
        checkpoints=(
            MeasuredCheckpoint(1, 1.0, 0.02, 10, 10),
            MeasuredCheckpoint(2, 2.0, 9.0, 0, 0, completed=False),
        ),
        samples=(EngineSample(1.0, {"running": 2.0, "waiting": 0.0, "kv_cache_usage": 0.5}),),
        kills=(Killed("jvm", 5.0, 5.0),),
        provenance={"command": "forebay bench <script>"},
        **changes,
    )


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)


@pytest.mark.heavy
@pytest.mark.parametrize("runs", [1, 3, 30])
def test_the_page_has_all_parts_and_loads_nothing(runs: int) -> None:
    found = [measured_stream(made(), EventSlo(within_s=1.0)) for _ in range(runs)]
    page = stream_page(found, "goodput", ["7 events/s are sustained"])
    tags = Tags()
    tags.feed(page)
    assert "script" not in tags.seen
    assert "src=" not in page
    assert "http:" not in page.replace("http://www.w3.org", "")
    for words in (
        "✕ INVALID",
        "jvm killed",
        "committed within 1 s",
        "queue and prefill",
        "7 events/s",
    ):
        assert words in page, words
    assert len(page) < 3_000_000


def test_the_figures_are_those_of_the_run() -> None:
    run = made_run(records=(answered(0, 1.0, 1.25, 1.5, 1.75, 2.25), failed(1, 2.0)), duration_s=4.0)
    found = words(page(measured(run, RequestSlo(e2el_s=1.0))))
    for text in (
        "1 of 2 requests answered",
        "0.25 requests/s answered",
        "0.75 output tokens/s",
        "500 ms TTFT median",
        "375 ms TPOT median",
        "1,250 ms E2EL median",
        "0.0% goodput",
        "1 503: overloaded",
        "TTFT, service, ms 1 250 0 250 250 – – – 250",
    ):
        assert text in found, text


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("requests", "told"),
    [
        (40, ("p25", "p50", "p75")),
        (150, ("p10", "p25", "p50", "p75", "p90")),
        (1000, ("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99")),
    ],
)
def test_percentiles_of_few_samples_are_in_no_table(requests: int, told: tuple[str, ...]) -> None:
    found = page(measured(made_run(requests=requests, failing=0.0), verdict=VALID))
    (table,) = re.findall(r"<table[^>]*>(?:(?!<table).)*", found.split("TTFT in numbers", 1)[1], re.S)[:1]
    assert tuple(re.findall(r">(p[\d.]+)<", table.split("</table>")[0])) == told


@pytest.mark.heavy
def test_interrupted_run_is_marked() -> None:
    assert "interrupted" in words(page(replace(ONE, run=replace(ONE.run, complete=False))))
    assert "interrupted" not in words(page(ONE))


@pytest.mark.heavy
def test_the_page_loads_nothing_and_runs_nothing() -> None:
    found = page(ONE, ONE)
    assert "default-src 'none'" in unescape(found)
    assert "script-src 'none'" in unescape(found)
    assert "<script" not in found
    assert not re.search(r"""(?:src|href)=|url\(|@import|https?://(?!127\.0\.0\.1)""", found)


def test_every_chart_has_a_description() -> None:
    found = page(ONE)
    drawings = re.findall(r'<div class="plot [a-z]+">(<svg[^>]*>)', found)
    assert len(drawings) > 8
    assert all(re.search(r'role="img" aria-label="[^"]{10,}"', drawing) for drawing in drawings)
    # Numbers are available without sight, except those of single requests.
    assert found.count("<summary>the numbers</summary>") == len(drawings) - 1


def test_equal_response_and_service_times_are_one_curve() -> None:
    assert "from when sent the same" in words(page(ONE))
    records = tuple(answered(n, n * 1.0, n + 0.5, n + 0.75, n + 1.0) for n in range(20))
    late = words(page(measured(made_run(records=records))))
    assert "from when sent the same" not in late
    assert "from when it was sent" in late


@pytest.mark.heavy
def test_objective_is_shown_with_its_share_and_drawn_if_near() -> None:
    near, far = (
        page(measured(ONE.run, RequestSlo(ttft_s=0.1))),
        page(measured(ONE.run, RequestSlo(ttft_s=60.0))),
    )
    assert re.search(r"objective: [\d.]+% within 100 ms", words(near))
    assert "objective: 100.0% within 60,000 ms" in words(far)
    assert near.count('class="red dash"/>') == far.count('class="red dash"/>') + 1


def test_without_the_requests_the_figures_stand() -> None:
    found = page(MeasuredRun(replace(ONE.run, records=(), samples=()), ONE.figures, SLO, VALID))
    assert "The file with the requests is missing." in words(found)
    assert "Figures" in titles(found)


def test_a_run_without_events_has_a_page() -> None:
    assert "0 of 0" in stream_page([measured_stream(stream_run([]))], "stream")


def test_the_slowest_are_distinguished_from_the_usual() -> None:
    slow = (0.001, 0.002, 0.003, 0.01, 9.0, 0.2, 0.001, 0.5)
    run = stream_run([*even(90), *(event(n, n / 10, slow) for n in range(90, 100))])
    (_, usual), (_, slowest) = slow_and_usual(run)
    assert all(each.index < 90 for each in usual)
    assert sorted(each.index for each in slowest) == list(range(90, 100))
