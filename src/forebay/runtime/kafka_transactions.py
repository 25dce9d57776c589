"""The transactions in which results are written to Kafka: their names, and whether Kafka has ended one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forebay.config.spec import PipelineSpec
from forebay.connectors.base import DEAD_LETTERS, RESULTS
from forebay.connectors.kafka.admin import KafkaAdmin
from forebay.connectors.kafka.settings import KafkaSink, transaction_prefix
from forebay.errors import SettingError
from forebay.flink.checkpoints import checkpoints_of

NAMES = {"sink": RESULTS, "dead_letters": DEAD_LETTERS}
ABORTED = frozenset(("PrepareAbort", "CompleteAbort", "PrepareEpochFence"))
"""Kafka's words for a transaction whose records nobody will read."""
SKIPPED = 10
"""A checkpoint that is given up leaves its number out: a transaction bears the number at which it began."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The checkpoint that a pipeline resumes, its number, the id of the state that it is of, and how many
    subtasks the job had."""

    checkpoint: Path
    number: int
    state_id: str | None
    parallelism: int


def check_transactions(
    admin: KafkaAdmin, spec: PipelineSpec, key: str, sink: KafkaSink, resumed: Resumed
) -> None:
    """Raise `SettingError` where Kafka has thrown away what the checkpoint is to commit.

    That is what a transaction holds that was open for longer than its time-out. Flink would go on without.
    Raises `KafkaAway` where Kafka does not answer. What Kafka has forgotten (by default after a week) is not
    noticed here.
    """
    prefix = transaction_prefix(spec.name, NAMES[key], resumed.state_id)
    for subtask in range(resumed.parallelism):
        numbers = range(resumed.number, max(0, resumed.number - SKIPPED), -1)
        ids = [f"{prefix}-{subtask}-{number}" for number in numbers]
        states = admin.transactions(ids)
        newest = next((id for id in ids if id in states), None)
        if newest is not None and states[newest].state in ABORTED:
            raise SettingError(
                f"{key}.topic: Kafka has thrown away transaction {newest} with results of checkpoint "
                f"{resumed.number}, as the pipeline was down for longer than transaction_timeout_s "
                f"({sink.transaction_timeout_s:g}). {_mend(resumed)}"
            )


def _mend(resumed: Resumed) -> str:
    older = [each for each in checkpoints_of(resumed.checkpoint.parent) if each.number < resumed.number]
    again = (
        f"Resume with --from-checkpoint {older[0].path} to have them made again, or" if older else "Resume"
    )
    return f"{again} with --from-checkpoint {resumed.checkpoint} to go on without them"
