from __future__ import annotations

import io
import logging
import re
import unicodedata

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from forebay.api.execution import lines
from forebay.apps.summaries.page import summaries_page
from forebay.apps.summaries.values import Source, Statement, Summary
from forebay.cli import main
from forebay.cli.live import LiveLine, report
from forebay.cli.run import show_lost
from forebay.engine.launch import ConsoleProgress
from forebay.errors import SettingError
from forebay.pages.render import page
from forebay.pipeline.snapshot import Snapshot
from forebay.untrusted_text import PlainFormatter, counted, quoted, replace_controls

ATTACK = (
    "\x1b]0;owned\x07 \x1b[2J \x9b31m \x00 \r over \x08\x7f \u202egnp.exe\u202c \u2066x\u2069 \u200f\u061c"
)
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]")
OWN_STYLE = re.compile(r"\x1b\[[0-9;]*[mKA]|\x1b\[\?25[lh]|\r")


def terminal() -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=True, width=500, _environ={"TERM": "xterm"}), written


def steering(shown: str) -> list[str]:
    """Control sequences left in `shown`, except the colours that the console itself writes."""
    return STEERING.findall(OWN_STYLE.sub("", shown))


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_control_characters_are_removed_and_the_rest_stays(text: str) -> None:
    plain = replace_controls(text)
    assert len(plain) == len(text)
    assert not STEERING.search(plain)
    plain.encode()  # raises for half a character
    assert all(unicodedata.category(one) != "Cc" or one in "\t\n" for one in plain)
    for one, other in zip(text, plain, strict=True):
        assert other in (one, "\ufffd")


def test_emoji_and_scripts_from_right_to_left_stay() -> None:
    for text in ("👩‍👩‍👧 ok", "שלום", "می‌خواهم", "日本語\n\ttab"):
        assert replace_controls(text) == text


def test_recovered_failure_cannot_control_the_terminal() -> None:
    console, written = terminal()
    with LiveLine(console) as line:
        line.show(Snapshot(1.0, "RUNNING", restarts=1, failure=ATTACK, engine_failure=ATTACK))
    assert "owned" in written.getvalue()
    assert not steering(written.getvalue())


def test_dead_letter_cannot_control_the_terminal() -> None:
    console, written = terminal()
    show_lost([orjson.dumps({"cause": "template" + ATTACK, "detail": ATTACK})], console, 1, "out")
    assert "owned" in written.getvalue()
    assert not steering(written.getvalue())


def test_engine_start_output_cannot_control_the_terminal() -> None:
    console, written = terminal()
    with ConsoleProgress(console).step("starting") as detail:
        detail(ATTACK)
    assert not steering(written.getvalue())


def test_field_names_in_errors_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise SettingError(f"in.csv: no column 'text'; there are {ATTACK}")

    monkeypatch.setattr("forebay.cli.application", lambda: fails)
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    with pytest.raises(SystemExit):
        main()
    text = capsys.readouterr().err
    assert "owned" in text
    assert not steering(text)


def test_log_line_cannot_control_the_terminal() -> None:
    record = logging.LogRecord("forebay", logging.WARNING, "", 1, "the server answered %s", (ATTACK,), None)
    assert not STEERING.search(PlainFormatter().format(record))


def test_no_text_can_control_a_page() -> None:
    shown = page("trends.html.j2", title=ATTACK, lead=ATTACK, trends=())
    assert "owned" in shown
    assert not STEERING.search(shown)


def test_no_text_can_control_the_summary_page() -> None:
    statement = Statement(ATTACK, (Source(ATTACK, 1, ATTACK),))
    counts = dict.fromkeys(Summary.__dataclass_fields__, 1)
    named = {
        "failures": {ATTACK: 1},
        "failure": ATTACK,
        "key": ATTACK,
        "kind": "tumbling",
        "statements": (statement,),
        "end_ms": 60_000,
    }
    summary = Summary(**{**counts, **named})  # type: ignore[arg-type]
    shown = summaries_page([orjson.dumps({"answer": summary.to_json()})])
    assert "owned" in shown
    assert not STEERING.search(shown)


def test_a_noun_agrees_with_its_count() -> None:
    assert [counted(n, "dead letter") for n in (0, 1, 2, 1234)] == [
        "0 dead letters",
        "1 dead letter",
        "2 dead letters",
        "1,234 dead letters",
    ]
    assert [counted(n, "answer was", "answers were") for n in (1, 2)] == ["1 answer was", "2 answers were"]


@given(st.integers(0, 3), st.integers(0, 3))
def test_the_last_line_of_a_run_and_the_lines_of_a_program(count: int, other: int) -> None:
    last = Snapshot(
        1.0, "FINISHED", accepted=count, results=other, dead_letters=count, completion_tokens=other,
        suspect_times=other, cut_answers=count, skipped_records=other, gaps=("x",) * count,
    )  # fmt: skip
    console = Console(record=True, width=500)
    report(last, one_each=True, json=None, console=console)
    counts = {"accepted": count, "results": other, "dead_letters": count}
    text = console.export_text() + "\n".join(lines({"sort": counts}))
    assert re.search(r"\b1 (events|results|dead letters|tokens|answers|records|places)\b", text) is None
    assert re.search(r"\b[023] (event|result|dead letter|token|answer|record|place)\b", text) is None


PIECES = st.sampled_from(
    ["<message>", "</message>", "</ MESSAGE >", "<", ">", "/", "message", " ", "a", "שלום", "🙂"]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_text_cannot_forge_its_own_marks(text: str) -> None:
    marks = re.findall(r"(?i)<\s*/?\s*message[^<>]*>?", quoted("message", text))
    assert marks == ["<message>", "</message>"]


@pytest.mark.parametrize("text", ["", "a < b > c", "مرحبا", "👩‍👩‍👧 \u202e", "x" * 1000])
def test_other_text_is_kept_as_it_is(text: str) -> None:
    assert quoted("message", text) == f"<message>\n{text}\n</message>"
