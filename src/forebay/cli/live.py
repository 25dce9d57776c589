"""What a person sees while a pipeline runs, and at its end."""

from __future__ import annotations

import time
from dataclasses import asdict
from types import TracebackType

import orjson
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from forebay.pipelines.run import Snapshot

PLAIN_EVERY_S = 10.0


class LiveLine:
    """One line that is drawn over on a terminal; elsewhere a new line every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, refresh_per_second=4)
        self._before: Snapshot | None = None
        self._tokens_per_s = 0.0
        self._printed_s = 0.0

    def __enter__(self) -> LiveLine:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, now: Snapshot) -> None:
        """Show `now`."""
        before = self._before
        if before is not None and now.elapsed_s > before.elapsed_s:
            rate = (now.completion_tokens - before.completion_tokens) / (now.elapsed_s - before.elapsed_s)
            self._tokens_per_s += 0.3 * (max(rate, 0.0) - self._tokens_per_s)
        self._before = now
        text = line_of(now, self._tokens_per_s)
        if self._console.is_terminal:
            self._live.update(Text(text))
        elif time.monotonic() - self._printed_s >= PLAIN_EVERY_S:
            self._printed_s = time.monotonic()
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def line_of(now: Snapshot, tokens_per_s: float) -> str:
    """The live line."""
    restarts = f" · restarts {now.restarts}" if now.restarts else ""
    return (
        f"{now.elapsed_s:5.0f} s {now.state.lower()} · in {now.accepted} · out {now.results} · "
        f"in flight {now.in_flight} · event p50 {_time(now.event_p50_s)} p99 {_time(now.event_p99_s)} · "
        f"{tokens_per_s:.0f} tokens/s · dead letters {now.dead_letters}{restarts}"
    )


def report(last: Snapshot, *, json: bool, console: Console) -> None:
    """The end of a run: one JSON document on standard output, or one line."""
    if json:
        typer.echo(orjson.dumps(asdict(last)).decode())
        return
    tokens = last.prompt_tokens + last.completion_tokens
    console.print(
        f"{last.state.lower()} after {last.elapsed_s:.0f} s: {last.accepted} events in, "
        f"{last.results} results, {last.dead_letters} dead letters, {tokens} tokens",
        highlight=False,
        soft_wrap=True,
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
