"""Sort the tickets of a file by team and write the answers to a Kafka topic, exactly once.

    forebay engine up
    forebay connectors install kafka
    kafka-topics.sh --bootstrap-server localhost:9092 --create --topic teams
    python examples/tickets_to_kafka.py

Kill it and run it again: it resumes from its newest checkpoint.
"""

from pathlib import Path
from typing import Literal

import pydantic

import forebay as fb

ENGINE = "http://127.0.0.1:8100"
KAFKA = "localhost:9092"
TOPIC = "teams"
HERE = Path(__file__).parent


class Ticket(pydantic.BaseModel):
    """The form of an answer. One that does not fit is asked for again."""

    team: Literal["billing", "network", "account", "other"]


ask = fb.Inference(
    ENGINE,
    messages=[
        fb.Message("system", "You sort support tickets. Answer with JSON."),
        fb.Message("user", "By {{ channel }}: {{ text }}"),
    ],
    schema=Ticket,
    sampling=fb.Sampling(max_tokens=32),
)

env = fb.environment(checkpoints="state/tickets", every_s=2)
tickets = fb.read_jsonl(env, HERE / "tickets.jsonl")

# The answers of one user leave in the order of the user's tickets. Answers of other users do not wait.
answered = fb.infer(tickets, ask, key="{{ user }}", id="{{ id }}", ordering="key")

# `result.answer` is a Ticket. Kafka gets the whole result as JSON.
answered.results.map(lambda result: f"{result.key}: {result.answer.team}").print()
fb.write_kafka(answered.results, KAFKA, TOPIC, name="tickets")
fb.write_jsonl(answered.dead_letters, "out/tickets-dead-letters")
env.execute("tickets")
