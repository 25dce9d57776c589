"""Forebay, after docs/python.md and docs/how-to/kafka.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forebay as fb


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    port = str(order["rest_port"])
    env = fb.environment(
        checkpoints=order["state"],
        every_s=1,
        options={"rest.port": port, "rest.bind-port": port, "web.checkpoints.history": "1000"},
    )
    events = fb.read_kafka(env, order["bootstrap"], order["events"], group=order["events"], start="earliest")
    ask = fb.Inference(
        order["engine"],
        model=order["model"],
        messages=[fb.Message("system", order["system"]), fb.Message("user", "{{ prompt }}")],
        sampling=fb.Sampling(max_tokens=order["max_tokens"], temperature=0.0),
        capacity=order["capacity"],
    )
    answered = fb.infer(events, ask, id="{{ event_id }}")
    fb.write_kafka(answered.results, order["bootstrap"], order["results"], name=order["results"])
    fb.write_kafka(answered.dead_letters, order["bootstrap"], order["letters"], name=order["letters"])
    env.execute("peer")


if __name__ == "__main__":
    main()
