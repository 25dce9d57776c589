"""What a person sees of a run while it runs, beyond the live line: its page, and news of its application."""

from __future__ import annotations

import logging
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.cli.output import print_line
from forebay.cli.show import PAGE
from forebay.json_numbers import read_json
from forebay.pipeline.live.outputs import OutputsReader, RunOutputs, one_line
from forebay.pipeline.live.view import LivePage
from forebay.settings import shows_browser

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.pipeline.plan import Plan
    from forebay.pipeline.snapshot import Snapshot
    from forebay.pipeline.spec import PipelineSpec

LOG = logging.getLogger("forebay")
TOP = 5
Watch = Callable[["Snapshot"], None]


def has_browser() -> bool:
    """Whether a browser with a window can be opened here, by a person at a terminal."""
    if not (sys.stderr.isatty() and shows_browser()):
        return False
    try:
        # Those for the terminal are of this class, those for a screen of others, some derived from it.
        return type(webbrowser.get()) is not webbrowser.GenericBrowser
    except webbrowser.Error:
        return False


class Watched:
    """A run's page and what its application has found. `watch` receives each snapshot, and passes it on."""

    def __init__(
        self, spec: PipelineSpec, console: Console, watch: Watch, *, replicas: int | None = None
    ) -> None:
        self._spec = spec
        self._console = console
        news = None if spec.application is None else self._print_finding
        self._outputs = RunOutputs(spec, keep_all=spec.application is not None, news=news)
        self._page = LivePage(spec, self._outputs, replicas=replicas)
        self._watch = watch

    def watch(self, now: Snapshot) -> None:
        self._page.watch(now)
        self._watch(now)

    @contextmanager
    def shown(self, port: int | None, *, reads: bool = True) -> Iterator[Watched]:
        """Read the outputs if `reads`, and serve the page at `port` (None: not), until the block ends."""
        with ExitStack() as stack:
            if port is not None:
                from forebay.pipeline.live.server import PageServer

                server = PageServer(self._page, port)
                server.start()
                stack.callback(server.close)
                print_line(self._console, f"watch this run at {server.url}")
                if has_browser():
                    webbrowser.open(server.url)
            if reads or port is not None:
                reader = OutputsReader(self._outputs)
                reader.start()
                stack.callback(reader.close)
            yield self

    def write(self, path: Path) -> None:
        """Write the page to a file that needs no server, and name it."""
        page = self._page.page(live=False)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page, encoding="utf-8")
        except OSError as error:
            print_line(self._console, f"the page {path} cannot be written: {error.strerror or error}")
            return
        print_line(self._console, f"this run as a page: {path}")

    def finish(self, page: Path | None) -> None:
        """Write the page, and print the most important five of what the application has found."""
        if page is not None:
            self.write(page)
        application = self._spec.application
        if application is not None:
            lines = [*self._outputs.results.lines, *self._outputs.letters.lines]
            for number, found in enumerate(application.top(lines)[:TOP], 1):
                print_line(self._console, f"{number}. {one_line(found)}")

    def _print_finding(self, line: bytes) -> None:
        assert self._spec.application is not None
        try:
            found = self._spec.application.news(read_json(line)["answer"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        except Exception:
            LOG.exception("an application's news of a result cannot be made; the run continues")
            return
        if found:
            print_line(self._console, one_line(found))


def page_of(plan: Plan, *, ui: bool) -> Path | None:
    """Where the run's page is written at its end; None: nowhere."""
    from forebay.clients.s3.location import location_of

    if plan.page is not None:
        return plan.page
    folder = plan.spec.directories().get("sink.path")
    place = None if folder is None else location_of(folder)
    return place / PAGE if ui and isinstance(place, Path) else None
