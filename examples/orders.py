"""A program that remembers: what a customer ordered, and a reminder after an hour without an order.

    forebay engine up
    python examples/orders.py

Its test needs neither Flink nor an engine: `cd examples && python -m pytest test_orders.py`.
"""

import forebay as fb

ENGINE = "http://127.0.0.1:8100"
HOUR_MS = 3_600_000


class Orders(fb.Program[list[str]]):
    """The state of a customer is the list of orders."""

    version = 1

    def initial(self, key: str) -> list[str]:
        return []

    def on_event(self, state: list[str], event: fb.Event, now: fb.Moment) -> fb.Step[list[str]]:
        items = [*state, event.fields["text"]]
        question = f"<orders>\n{'; '.join(items)}\n</orders>\nWhat might this customer want next?"
        timers = {} if event.time_ms is None else {"idle": fb.Timer(event.time_ms + HOUR_MS)}
        return fb.Step(items, fb.Ask((fb.Message("user", question),)), timers=timers)

    def on_answer(self, state: list[str], tag: str, answer: fb.Answer, now: fb.Moment) -> fb.Step[list[str]]:
        return fb.Step(state, outputs=(fb.Output({"orders": len(state), "next": answer.value}),))

    def on_timer(self, state: list[str], name: str, time_ms: int, now: fb.Moment) -> fb.Step[list[str]]:
        # No state: the customer is forgotten.
        return fb.Step(None, outputs=(fb.Output({"reminder": state}, {"customer": now.key}, time_ms),))


def to_event(order: tuple[int, str, str]) -> fb.Event:
    minute, customer, text = order
    return fb.Event(text.encode(), {"customer": customer, "text": text}, time_ms=minute * 60_000)


if __name__ == "__main__":
    env = fb.environment()
    orders = env.from_collection([(0, "ann", "tea"), (1, "bob", "a kettle"), (2, "ann", "cups")])
    ask = fb.Inference(ENGINE, sampling=fb.Sampling(max_tokens=32))
    given = fb.infer_stateful(orders, Orders(), ask, key="{{ customer }}", to_event=to_event)
    given.results.map(lambda result: f"{result.key}: {result.answer}").print()
    fb.write_jsonl(given.dead_letters, "out/orders-dead-letters")
    env.execute("orders")
