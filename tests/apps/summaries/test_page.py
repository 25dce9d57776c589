"""The page is self-contained, links statements to their events, and runs no code from them."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import orjson
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.summaries.page import summaries_page as page
from forebay.apps.summaries.values import Source, Statement, Summary

SUMMARY = Summary(
    key="#ubuntu",
    kind="tumbling",
    start_ms=1_600_000_000_000,
    end_ms=1_600_003_600_000,
    revision=0,
    statements=(
        Statement(
            "Sound fails after the update.", (Source("a", 1_600_000_100_000, "bob: no sound"),), more=3
        ),
        Statement(
            "Reinstalling helped.",
            (
                Source("b", 1_600_000_200_000, "eve: reinstall"),
                Source("a", 1_600_000_100_000, "bob: no sound"),
            ),
        ),
    ),
    events=10,
    summarised=7,
    left_out=3,
    failed=0,
    late=1,
    cut=0,
    unsourced=0,
    calls=2,
    prompt_tokens=100,
    completion_tokens=20,
)
HARMLESS = """html head meta title style body main h1 h2 h3 p nav a section svg g rect ol li bdi span details
summary div small strong"""


class Reader(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def line(summary: Summary) -> bytes:
    return orjson.dumps({"id": "x", "answer": summary.to_json()})


def check(text: str) -> Reader:
    reader = Reader(text)
    assert reader.open == []
    assert set(reader.tags) <= set(HARMLESS.split())
    assert not any(name.startswith("on") or name in ("src", "style", "srcset") for name in reader.attributes)
    assert all(link.startswith("#") for link in reader.links)
    assert {link[1:] for link in reader.links} <= set(reader.ids)
    assert len(set(reader.ids)) == len(reader.ids)
    assert "script-src 'none'" in unescape(text)
    assert "default-src 'none'" in unescape(text)
    return reader


def test_statements_link_to_their_events() -> None:
    reader = check(page([line(SUMMARY)]))
    text = " ".join(reader.text)
    for part in ("#ubuntu", "Sound fails after the update.", "bob: no sound", "and 3 more", "10 events"):
        assert part in text
    assert "3 left out by sampling" in text
    assert reader.links.count("#k0w0e1") == 2
    assert reader.text.count("bob: no sound") == 1
    assert "2020-09-13 12:26" in text


def test_last_summary_of_a_corrected_window_is_shown() -> None:
    corrected = replace(
        SUMMARY, revision=1, statements=(Statement("All is new.", SUMMARY.statements[0].sources),)
    )
    text = " ".join(check(page([line(SUMMARY), line(corrected)])).text)
    assert "All is new." in text
    assert "Reinstalling" not in text
    assert "corrected, revision 1" in text


def test_events_of_failed_calls_are_not_shown_as_missing() -> None:
    lost = replace(SUMMARY, statements=(), events=6, summarised=0, left_out=0, failed=6)
    lost = replace(lost, failures={"prompt_too_long": 2}, failure="prompt_too_long: the context is <short>")
    text = " ".join(check(page([line(lost)])).text)
    assert "Could not be summarised: prompt_too_long: the context is <short>" in text
    assert "The calls for all of its events (6) failed." in text


def test_partly_failed_window_shows_the_failure_next_to_statements() -> None:
    text = " ".join(check(page([line(replace(SUMMARY, failed=2))])).text)
    assert "Summarised in part: the calls for 2 of 10 events failed." in text
    assert "Reinstalling helped." in text


def test_dropped_and_unsupported_statements_are_shown() -> None:
    statement = replace(SUMMARY.statements[0], unsupported=("alice", "40"))
    dropped = replace(SUMMARY, statements=(statement,), unsourced=1, broken=2, clipped=3)
    text = " ".join(check(page([line(dropped)])).text)
    assert "3 read only in part" in text
    assert "not in the texts: alice, 40" in " ".join(text.split())
    assert "1 statement dropped that cited no event" in text
    assert "2 statements dropped that repeated themselves or ended in the middle" in text


def test_summary_survives_a_json_round_trip() -> None:
    assert Summary.from_json(orjson.loads(orjson.dumps(SUMMARY.to_json()))) == SUMMARY


NASTY = st.one_of(
    st.sampled_from(
        (
            "<script>alert(1)</script>",
            '"><img src=x onerror=alert(1)>',
            "</style><script>1</script>",
            "javascript:alert(1)",
            "<!--",
            "&lt;b&gt;",
            "</bdi></li></ol></details><h1>",
        )
    ),
    st.text(max_size=30),
)


@given(NASTY, NASTY, NASTY, NASTY)
def test_event_contents_never_become_markup(key: str, id: str, text: str, said: str) -> None:
    statements = (Statement(said or "-", (Source(id, -(10**18), text), Source(id + "2", 10**18, text))),)
    summary = replace(SUMMARY, key=key, statements=statements)
    reader = check(page([line(summary)]))
    plain = reader.tags
    assert plain == check(page([line(replace(summary, key="k", statements=_harmless(statements)))])).tags


def _harmless(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return tuple(
        Statement("said", tuple(Source(f"id{n}", s.time_ms, "text") for n, s in enumerate(each.sources)))
        for each in statements
    )


def test_lines_of_other_kinds_and_an_empty_file() -> None:
    check(page([b"not json", b"{}", b'{"answer": "text"}', b'{"answer": {"type": "trend"}}']))
    check(page([]))


def test_failed_merge_is_reported_although_no_event_is_lost() -> None:
    text = " ".join(check(page([line(replace(SUMMARY, failures={"timeout": 1}, failure="timeout: x"))])).text)
    assert "Some statements could not be merged. 1 failed call, the last: timeout: x" in text
