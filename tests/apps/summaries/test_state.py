"""A key's state survives serialisation; unknown versions are refused."""

from __future__ import annotations

from tests.harness.summaries import Driven

from forebay.apps.summaries.intake import Arrival
from forebay.apps.summaries.plan import SummaryPlan, Windows
from forebay.apps.summaries.program import SummaryProgram
from forebay.apps.summaries.state import KeyState


def test_state_survives_a_round_trip() -> None:
    program = SummaryProgram(
        SummaryPlan(Windows.sliding(60_000, 15_000), chunk_tokens=200, partial_tokens=60)
    )
    driven = Driven(program, restarts=False, eager=0.8)
    for n in range(202):
        driven.event(Arrival(f"e{n}", n * 250, f"text {n} שלום 🎉"))
        driven.watermark(n * 250)
        if n % 3 == 0 and n < 180:
            driven.answer()
    assert driven.state.work is not None
    assert any(pane.nodes for pane in driven.state.panes)
    assert KeyState.from_bytes(driven.state.to_bytes()) == driven.state
