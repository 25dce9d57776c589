"""Summaries in a job that is killed and restored at another parallelism equal those of an undisturbed run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson
import pytest
from benchmarks.chatter import chatter, expected_summaries, summary_tally

from forebay.apps.summaries.settings import Summaries
from forebay.testing.script import Mixture
from forebay.testing.waiting import wait_until

if TYPE_CHECKING:
    from tests.harness.operators import Runs

pytestmark = pytest.mark.flink
SMALL = Summaries(size_s=60.0, lead_s=5.0, chunk_tokens=200, partial_tokens=60, summary_tokens=120, fan_in=2)


def test_summaries_are_unaffected_by_kill_and_rescale(
    make_runs: Callable[..., Runs],
) -> None:
    from tests.harness.operators import kill_tree

    runs = make_runs(
        program=SMALL.program(event_time=True),
        keyed=True,
        event_time=True,
        follow=True,
        delay=Mixture(((0.9, 0.05), (0.1, 0.4))),
    )
    # Five windows, and what begins the sixth and so closes the fifth: it is fed after the kill, so the job
    # cannot be done before.
    events = list(chatter(1240, 1, size_s=60.0))
    messages = [{**event, "key": event["channel"]} for event in events]
    runs.feed(messages[:1200])
    process = runs.spawn()
    wait_until(lambda: len(runs.results()) > 40)
    assert process.poll() is None
    kill_tree(process)
    assert len(runs.results()) < 200
    runs.feed(messages[1200:])
    job = runs.start(restore=True, parallelism=2)
    wait_until(lambda: len(runs.results()) >= 200, runs.WAIT_S)
    runs.await_checkpoint(job)

    results = runs.results()
    ids = {result["id"] for result in results}
    assert len(ids) == len(results)
    end_ms = events[1200]["at"]
    expected = {at: summary for at, summary in expected_summaries(events, SMALL).items() if at[1] < end_ms}
    # The job's ids are positions: lines of two files, counted from 1. Those expected are numbers.
    lines = [_POSITION.sub(_id, orjson.dumps(result)) for result in results]
    tally = summary_tally(
        expected, lines, [orjson.dumps(letter) for letter in runs.dead_letters()], whole=True
    )
    assert tally.exact, tally
    assert tally.events == len(results) == 200


_POSITION = re.compile(rb'"id":"in/000([01])\.jsonl@(\d+)"')


def _id(found: re.Match[bytes]) -> bytes:
    return b'"id":"e%d"' % (1200 * int(found[1]) + int(found[2]) - 1)
