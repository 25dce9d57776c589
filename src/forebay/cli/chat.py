"""`forebay chat`: talk to a running session application in the terminal."""

from __future__ import annotations

import io
import shlex
import sys
import time as clocks
import uuid
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.options import SetValues, option
from forebay.cli.output import (
    JsonFile,
    blamed,
    check_json,
    errors_console,
    print_line,
    results_console,
    write_json,
)
from forebay.errors import LaunchError, PipelineFailed, SettingError
from forebay.settings import load_settings
from forebay.untrusted_text import counted, replace_controls

if TYPE_CHECKING:
    from forebay.apps.sessions_page import Talk
    from forebay.pipeline.chat import Conversation, Send
    from forebay.pipeline.spec import PipelineSpec
    from forebay.pipeline.state_store import StateStore

SHOWN_TURNS = 20
SHOWN_CHARS = 4000
ANSWER = "    "
EVERY_S, REMOTE_S = 0.2, 2.0
REPORT_S = 10.0
FAILED_STATUS = 1


def chat(
    pipeline: Annotated[
        str, typer.Argument(help="The pipeline file of the run, or `sessions`.", metavar="PIPELINE")
    ],
    *,
    key: Annotated[str, option("Key of the session, such as the user's name.")],
    message: Annotated[
        str | None, option("Send this message, print the answer, and end.", metavar="TEXT")
    ] = None,
    timeout: Annotated[
        float, option("Seconds to wait for one answer. A later one is in the results.", min=0)
    ] = 600.0,
    source: Annotated[str | None, option("For `sessions`: the --source of its `forebay run`.")] = None,
    out: Annotated[Path | None, option("For `sessions`: the --out of its `forebay run`.")] = None,
    time: Annotated[str | None, option("For `sessions`: the --time of its `forebay run`.")] = None,
    set: SetValues = None,
    json: JsonFile = None,
) -> None:
    """Talk to a session application that runs, as one of its keys; show the newest turns first.

    A message goes through the pipeline's source (a followed folder of JSON lines, or a topic): it is answered
    once, in the order of its key, and remembered. If the application does not run, only the turns are shown.
    """
    from forebay.pipeline.chat import Conversation, start_kafka
    from forebay.pipeline.load import ApplicationOptions, load_pipeline

    check_json(json)
    if json is not None and message is None:
        raise SettingError("--json: expected --message with it, found none; a conversation is for a terminal")
    spec = load_pipeline(pipeline, ApplicationOptions(source, out, None, time), set or ())
    with blamed(f"forebay chat {pipeline}"):
        conversation = Conversation(spec, key)
        if spec.topics():
            start_kafka(load_settings())
    given = {"source": source, "out": out, "time": time}
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    start = shlex.join(["forebay", "run", pipeline, *options, *(f"--set={each}" for each in set or ())])
    with closing(conversation):
        _Chat(spec, conversation, key, timeout).run(pipeline, start, message, json)


class _Chat:
    def __init__(self, spec: PipelineSpec, conversation: Conversation, key: str, timeout_s: float) -> None:
        from forebay.clients.s3.location import location_of
        from forebay.pipeline.state_store import open_store

        self._spec = spec
        self._conversation = conversation
        self._key = key
        self._timeout_s = timeout_s
        self._store: StateStore = open_store(location_of(spec.checkpoint.dir))
        self._errors = errors_console()

    def run(self, pipeline: str, start: str, message: str | None, json: str | None) -> None:
        from forebay.pipeline.chat import way_in

        talks = self._conversation.talks()
        running = self._store.running()
        if message is None:
            if talks and self._conversation.partial:
                topic = self._spec.sink.summary()
                print_line(self._errors, f"older turns may be in {topic}: only its newest records were read")
            show_talks(talks, self._key)
        if not running:
            self._check_key(talks)
            raise PipelineFailed(
                f"the pipeline {self._spec.name!r} does not run, so nobody answers; start it with `{start}`, "
                f"then repeat this command{self._elsewhere()}"
            )
        with blamed(f"forebay chat {pipeline}"), way_in(self._spec, self._key, load_settings()) as send:
            if message is not None:
                found = self._ask(send, message)
                write_json(json, {"message": message, **found})
                if json != "-":
                    self._show(found)
                if "cause" in found:
                    raise typer.Exit(FAILED_STATUS)
                return
            if not talks:
                no_turn = self._none_among() or "no turn yet: your message begins a session"
                print_line(self._errors, f"{self._key[:80]!r} has {no_turn}")
            for text in self._messages():
                try:
                    self._show(self._ask(send, text))
                except (SettingError, LaunchError) as error:
                    print_line(self._errors, str(error), style="red")

    def _elsewhere(self) -> str:
        from forebay.connectors.kafka.settings import KafkaSource

        if not isinstance(self._spec.source, KafkaSource):
            return ""
        return (
            f". If it runs on Kubernetes, which is not seen from here, write records to its source "
            f"({self._spec.source.summary()}) with a client of Kafka: this command shows their turns"
        )

    def _none_among(self) -> str:
        if not self._conversation.partial:
            return ""
        topic = self._spec.sink.summary()
        return f"no turn among the newest records that were read of {topic}; its session may be older"

    def _check_key(self, talks: Iterable[Talk]) -> None:
        from forebay.documents import suggestion

        if not talks:
            known = counted(len(self._conversation.keys), "other key has", "other keys have")
            no_turn = self._none_among() or f"no turn in {self._spec.sink.summary()}"
            raise SettingError(
                f"--key: {self._key[:80]!r} has {no_turn}; {known} one"
                f"{suggestion(self._key, self._conversation.keys)}; a session begins if you write to the "
                f"pipeline {self._spec.name!r} while it runs"
            )

    def _messages(self) -> Iterable[str]:
        if isinstance(sys.stdin, io.TextIOWrapper):
            # So that only the message with wrong bytes is refused.
            sys.stdin.reconfigure(errors="surrogateescape")
        prompt = f"{one_name(self._key)}> " if sys.stdin.isatty() else ""
        if prompt:
            print_line(self._errors, "End with Ctrl-D.")
        while True:
            try:
                text = input(prompt)
            except EOFError:
                return
            if text.strip():
                yield text

    def _ask(self, send: Send, text: str) -> dict[str, Any]:
        from forebay.pipeline.chat import await_turn, engine_trouble

        mark = uuid.uuid4().hex
        record = self._conversation.record(text, mark, clocks.time_ns() // 1_000_000)
        failed = "was not sent"
        try:
            self._conversation.skip()
            # If Kafka does not confirm a record in time, it may have it.
            failed = "may not have been sent"
            send(record)
        except LaunchError as error:
            raise LaunchError(f"the message {failed}: {error}") from None
        try:
            value = await_turn(
                self._conversation,
                mark,
                running=self._store.running,
                trouble=lambda: engine_trouble(self._spec, self._store),
                report=lambda words: print_line(self._errors, words, style="yellow"),
                every_s=EVERY_S if isinstance(self._store.home, Path) else REMOTE_S,
                report_s=REPORT_S,
                timeout_s=self._timeout_s,
            )
        except KeyboardInterrupt:
            print_line(self._errors, "the message stays in the source: it is answered, but not shown here")
            raise
        return {name: value[name] for name in ("key", "id", "answer", "cause", "detail") if name in value}

    def _show(self, found: dict[str, Any]) -> None:
        from forebay.apps.page import why

        if "cause" in found:
            print_line(self._errors, f"no answer: {why(found['cause'], found['detail'])}", style="red")
            return
        print_line(results_console(), shown(str(found["answer"]["text"]), ANSWER))
        if found["answer"]["cut"]:
            print_line(self._errors, "the message was too long: its middle was left out", style="yellow")


def show_talks(talks: Iterable[Talk], key: str) -> None:
    """Print the newest turns of a key's sessions."""
    console = results_console()
    rows: list[tuple[str, ...]] = []
    for talk in talks:
        rows += [
            (shown(message, f"{one_name(key)}> "), shown(answer, ANSWER)) for _, message, answer in talk.turns
        ]
        if talk.ended:
            summary = f": {shown(' '.join(talk.summary.split()), '')}" if talk.summary else ""
            rows.append((f"(the session ended after {counted(talk.answered, 'turn')}{summary})",))
    if len(rows) > SHOWN_TURNS:
        print_line(console, f"({len(rows) - SHOWN_TURNS} earlier turns are not shown)")
    for row in rows[-SHOWN_TURNS:]:
        for text in row:
            print_line(console, text)


def shown(text: str, prefix: str) -> str:
    """Bounded; each line begins with `prefix`, so that none looks like another speaker's."""
    short = text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
    return "\n".join(f"{prefix}{line}" for line in replace_controls(short).split("\n"))


def one_name(key: str) -> str:
    return " ".join(replace_controls(key).split())[:40]
