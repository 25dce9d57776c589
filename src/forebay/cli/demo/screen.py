"""The result screen of `forebay demo`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forebay.cli.output import print_line
from forebay.untrusted_text import counted

if TYPE_CHECKING:
    from forebay.cli.demo.plan import DemoSummary
    from forebay.cli.demo.topics import Outbreak
    from forebay.pipeline.snapshot import Snapshot

BAR_WIDTH = 36
EXAMPLE_CHARS = 100
LOUD, QUIET = "bold red", "dim"


def show(summary: DemoSummary, last: Snapshot, where: str, console: Console) -> None:
    seconds = max(last.elapsed_s, 0.001)
    tokens = last.prompt_tokens + summary.completion_tokens
    console.print(
        f"\n{counted(last.accepted, 'event')}, {counted(summary.results, 'answer')}, "
        f"{counted(summary.dead_letters, 'dead letter')} in {last.elapsed_s:.0f} s; calls took "
        f"{summary.call_p50_s:.2f} s (p50) and {summary.call_p99_s:.2f} s (p99); "
        f"{summary.results / seconds:.1f} answers/s, {tokens / seconds:.0f} tokens/s read and written\n",
        highlight=False,
    )
    if summary.examples:
        examples = Table("event", "answer", title="examples", title_justify="left")
        for example in summary.examples:
            examples.add_row(_plain(example.text), _plain(example.answer))
        console.print(examples)
    if summary.causes:
        console.print(_counts("dead letters by cause", summary.causes))
    if summary.by_topic:
        console.print(_by_topic(summary))
    elif summary.results:
        console.print(_counts("sentiment", summary.sentiments))
        console.print(_counts("topic", summary.topics))
    # Printed last, because that stays on the screen.
    if len(summary.slices) > 1:
        console.print(_timeline(summary))
    for line in _findings(summary):
        console.print(line)
    print_line(console, where)


def _findings(summary: DemoSummary) -> Iterator[Text]:
    found, planted, right = summary.found, summary.planted, summary.right
    if found is not None:
        usual = f", {found.factor:.0f} times as many as usual" if found.factor else ""
        yield Text.assemble(
            "What happened: ",
            (_plain(found.topic).plain, LOUD),
            f" breaks out at {_clock(found.start_ms)}: {found.events} posts in {_length(found)}{usual}.",
        )
    elif planted is not None:
        yield Text("What happened: according to the answers, nothing broke out.")
    if planted is not None:
        sentence = f"Planted: {planted.topic}, from {_clock(planted.start_ms)} on, for {_length(planted)}. "
        hit = found is not None and found.overlaps(planted)
        yield Text(sentence + ("The model found it and named it." if hit else "The model missed it."))
    if right is not None:
        yield Text(
            f"Right topics: {right.right} of {right.events} ({right.share:.0%}), according to the generator."
        )


def _timeline(summary: DemoSummary) -> Table:
    table = Table("from", "events", "", "mostly about", title="over time", title_justify="left")
    most = max(piece.events for piece in summary.slices)
    # Tenths of a second only if needed to tell rows apart.
    chars = 8 if len({piece.start_ms // 1000 for piece in summary.slices}) == len(summary.slices) else 10
    for piece in summary.slices:
        whole = round(BAR_WIDTH * piece.events / most)
        loud = round(BAR_WIDTH * piece.outbreak / most)
        bar = Text.assemble(
            ("█" * loud, LOUD), ("░" * (whole - loud) if loud or summary.found else "█" * whole, QUIET)
        )
        table.add_row(_clock(piece.start_ms, chars), str(piece.events), bar, piece.topic)
    return table


def _by_topic(summary: DemoSummary) -> Table:
    table = Table(
        "topic", "posts", "right", "", title="topics, and how many were right", title_justify="left"
    )
    most = max(of.events for of in summary.by_topic.values())
    for name, of in sorted(summary.by_topic.items(), key=lambda item: -item[1].events):
        right = round(BAR_WIDTH * of.right / most)
        bar = Text.assemble("█" * right, ("░" * (round(BAR_WIDTH * of.events / most) - right), QUIET))
        table.add_row(name, str(of.events), f"{of.share:.0%}", bar)
    return table


def _counts(title: str, counts: Mapping[str, int]) -> Table:
    table = Table(title, "events", "")
    total = max(sum(counts.values()), 1)
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        table.add_row(_plain(name), str(count), "█" * round(BAR_WIDTH * count / total))
    return table


def _clock(time_ms: int, chars: int = 10) -> str:
    return datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc).strftime("%H:%M:%S.%f")[:chars]


def _length(outbreak: Outbreak) -> str:
    return f"{(outbreak.end_ms - outbreak.start_ms) / 1000:.1f} s"


def _plain(text: str) -> Text:
    return Text("".join(c if c.isprintable() else " " for c in text[:EXAMPLE_CHARS]))
