"""How to test a program: answer its calls, move its clocks, kill it."""

from orders import HOUR_MS, Orders

from forebay.testing import Machine


def test_a_customers_orders_are_counted() -> None:
    machine = Machine(Orders())
    machine.event("ann", 1, text="tea", time_ms=0)
    machine.event("ann", 2, text="cups", time_ms=1000)
    assert list(machine.calls) == ["ann"]  # The second order waits for the first one's answer.
    machine.answer("ann", "a teapot")
    machine.answer("ann", "sugar")
    assert [result.answer for result in machine.results] == [
        {"orders": 1, "next": "a teapot"},
        {"orders": 2, "next": "sugar"},
    ]


def test_a_call_is_made_again_after_a_kill() -> None:
    machine = Machine(Orders())
    machine.event("ann", 1, text="tea")
    machine.restart()  # Everything but the state is lost.
    machine.answer("ann", "a teapot")
    assert [result.answer for result in machine.results] == [{"orders": 1, "next": "a teapot"}]


def test_a_reminder_comes_after_an_hour_without_an_order() -> None:
    machine = Machine(Orders())
    machine.event("ann", 1, text="tea", time_ms=0)
    machine.answer("ann", "a teapot")
    machine.pass_time(watermark_ms=HOUR_MS + 1)
    assert machine.results[-1].answer == {"reminder": ["tea"]}
