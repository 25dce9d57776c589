"""Read tickets from a Kafka topic and write the team of each to another, exactly once.

    forebay engine up
    forebay connectors install kafka
    for topic in tickets teams dead-tickets; do
        kafka-topics.sh --bootstrap-server localhost:9092 --create --topic $topic
    done
    python examples/tickets_between_topics.py

Kill it and run it again: it resumes from its newest checkpoint. A second copy beside it is refused.
"""

from typing import Any, Literal

import pydantic

import forebay as fb

ENGINE = "http://127.0.0.1:8100"
KAFKA = "localhost:9092"
TICKETS = "tickets"
TEAMS = "teams"
DEAD = "dead-tickets"


class Ticket(pydantic.BaseModel):
    team: Literal["billing", "network", "account", "other"]


ask = fb.Inference(ENGINE, prompt="Which team should take this? {{ text }}", schema=Ticket)


def team(result: fb.Result) -> dict[str, Any]:
    return {"ticket": result.fields["id"], "team": result.answer.team}


env = fb.environment(checkpoints="state/teams", every_s=2)
tickets = fb.read_kafka(env, KAFKA, TICKETS, group="teams", start="earliest")
answered = fb.infer(tickets, ask, key="{{ user }}", id="{{ id }}", ordering="key")

# Consumers with isolation.level=read_committed see these with the next checkpoint. Keys are users.
fb.write_kafka(answered.results, KAFKA, TEAMS, name="teams", key="{{ user }}", value=team)
fb.write_kafka(answered.dead_letters, KAFKA, DEAD, name="teams-dead")
env.execute("teams")
