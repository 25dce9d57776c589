"""After a run without results, the most frequent cause of dead letters is shown."""

from __future__ import annotations

import io

import orjson
from rich.console import Console

from forebay.cli.run import show_lost


def shown(*letters: tuple[str, str]) -> str:
    written = io.StringIO()
    lines = (orjson.dumps({"cause": cause, "detail": detail}) for cause, detail in letters)
    show_lost(lines, Console(file=written, width=60), 19, "topic letters at broker:9092")
    return written.getvalue()


def test_the_most_frequent_cause_and_an_example_are_named() -> None:
    one, other = ("malformed_record", "the time field 'text' holds [red]no time"), ("late", "2 s")
    assert shown(other, one, ("malformed_record", "another")) == (
        "warning: no results, only dead letters (19), most often malformed_record: the time field 'text' "
        "holds [red]no time\n"
    )


def test_text_of_a_record_is_short_and_steers_no_terminal() -> None:
    said = shown(("bad_record", "\x1b[2J\x07" + "a" * 5000))
    assert "\x1b" not in said
    assert "\x07" not in said
    assert len(said) < 600


def test_letters_that_are_not_in_files_are_located() -> None:
    assert shown() == (
        "warning: no results, only dead letters (19), causes in topic letters at broker:9092\n"
    )
