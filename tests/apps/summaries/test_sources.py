"""Every event is in one call or is one dead letter, with late and equal times, failures and restarts."""

from __future__ import annotations

import random
import re
from collections import Counter

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.apps.summaries.settings import MAX_STATE_BYTES, SummarySpec
from forebay.records import Request, Usage
from forebay.stateful.key_states import StateLimits
from forebay.testing.answers import answer_to, request_text, tokens
from forebay.testing.stateful import Machine

pytestmark = pytest.mark.heavy

BEGIN_MS = 1_600_000_000_000
SMALL = SummarySpec(
    size_s=60.0,
    step_s=15.0,
    gap_s=20.0,
    every_s=30.0,
    lead_s=5.0,
    allowed_s=90.0,
    correct_s=10.0,
    chunk_tokens=200,
    partial_tokens=60,
    summary_tokens=120,
    work_tokens=10_000_000,
    ahead_s=300.0,
    fan_in=2,
)
KINDS = (
    *[("tumbling", late) for late in ("next", "side", "correct")],
    *[("session", late) for late in ("next", "side", "correct")],
    *[("sliding", late) for late in ("next", "side")],
    *[("rolling", late) for late in ("next", "side")],
)
MESSAGE = re.compile(r"^\d+\. \d\d:\d\d (?:\(late\) )?message (\d+)\b", re.MULTILINE)


def answer(machine: Machine, key: str = "k") -> None:
    ask = machine.calls[key].ask
    assert ask.sampling is not None
    text = request_text(Request("", "", ask.messages))
    message, _ = answer_to(text, ask.schema, max_tokens=ask.sampling.max_tokens)
    machine.answer(key, orjson.loads(message), Usage(tokens(text), tokens(message)))


@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 2**32),
    st.integers(0, 90),
    st.sampled_from((2_000, 15_000, 60_000)),
    st.tuples(st.sampled_from((0.0, 0.3)), st.sampled_from((0.2, 0.8)), st.sampled_from((None, 40.0))),
)
def test_each_event_is_in_one_call_or_a_dead_letter(
    kind: tuple[str, str], seed: int, count: int, noise_ms: int, pace: tuple[float, float, float | None]
) -> None:
    window, late = kind
    failing, eager, idle_s = pace
    rng = random.Random(seed)
    told = SMALL.model_copy(update={"window": window, "late": late, "idle_s": idle_s})
    machine = Machine(told.program(event_time=True), StateLimits(max_state_bytes=MAX_STATE_BYTES), BEGIN_MS)
    now_ms = newest_ms = BEGIN_MS
    for n in range(count):
        now_ms += rng.choice((0, 0, 100, 1000, 5000, 25_000))
        time_ms: int | None = now_ms + rng.choice((0, 0, rng.randint(-noise_ms, noise_ms)))
        if rng.random() < 0.03:
            time_ms = rng.choice((None, 0, now_ms - 10**10, now_ms + 10**10))
        machine.event("k", n, time_ms=time_ms, text=f"message {n} " + "word " * rng.randint(0, 30))
        if time_ms is not None and time_ms < now_ms + 10**9:
            newest_ms = max(newest_ms, time_ms)
        if rng.random() < 0.5:
            machine.pass_time(wall_ms=now_ms, watermark_ms=newest_ms - 3000)
        if rng.random() < 0.1:
            machine.pass_time(wall_ms=now_ms + 45_000)
        if rng.random() < 0.1:
            machine.restart()
        while machine.calls and rng.random() < eager:
            if rng.random() < failing:
                machine.give_up("k")
            else:
                answer(machine)
    machine.pass_time(watermark_ms=2**63 - 1)
    machine.end(answer)
    called: Counter[str] = Counter()
    for call in machine.asked:
        part = call.ask.messages[1].content.partition("<messages>")[2]
        called.update(MESSAGE.findall(part))
    letters = Counter(str(letter.id)[1:] for letter in machine.letters)
    assert {letter.cause for letter in machine.letters} <= {"late", "future", "no_time"}
    assert called + letters == Counter(str(n) for n in range(count))
    accepted = count - letters.total()
    answers = [result.answer for result in machine.results]
    for each in answers:
        assert each["events"] == each["summarised"] + each["failed"]
    if window == "rolling":
        assert (answers[-1]["events"] if answers else 0) == accepted
        assert [each["revision"] for each in answers] == list(range(len(answers)))
    else:
        share = 4 if window == "sliding" else 1
        last = {(each["window"]["start_ms"], each["window"]["end_ms"]): each for each in answers}
        assert late == "correct" or len(last) == len(answers)
        assert sum(each["events"] for each in last.values()) == share * accepted
        assert list(machine.stores.keys.items()) == []
