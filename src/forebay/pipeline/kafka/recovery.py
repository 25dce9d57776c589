"""Ends the previous job's Kafka transactions before a job starts: commits the resumed checkpoint's, aborts
later ones.

Transactions are named after their job, so an earlier job that still runs on an unreachable machine cannot
abort a new job's transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from forebay.clients.s3.location import Location, location_of
from forebay.connectors.kafka.admin import START_TIMEOUT_S, KafkaAdmin, Transaction, kafka_admin
from forebay.connectors.kafka.clients import commit
from forebay.connectors.kafka.settings import KafkaSink, transaction_prefix
from forebay.errors import SettingError
from forebay.flink.checkpoints import job_of
from forebay.pipeline.kafka.transactions import ABORTED, COMMITTED, MAX_SINCE, NAMES, OPEN, SKIPPED
from forebay.pipeline.run_state import RunState
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import number_of, open_store

TRIES = 3
"""An earlier job that still runs may abort a transaction while it is being committed."""


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """A transaction: its sink's key in the pipeline file, its subtask, and the checkpoint that commits it (or
    a later one, if that fails).
    """

    key: str
    subtask: int
    number: int


Found = Mapping[Name, Transaction]


def held(found: Found, number: int) -> dict[Name, Transaction]:
    """Each subtask's newest transaction up to checkpoint `number`."""
    newest: dict[tuple[str, int], Name] = {}
    for name in sorted(found):
        if name.number <= number:
            newest[name.key, name.subtask] = name
    return {name: found[name] for name in newest.values()}


def lost(found: Found, number: int) -> list[Name]:
    """Transactions aborted by Kafka that checkpoint `number` should commit."""
    return [name for name, each in held(found, number).items() if each.state in ABORTED]


def nothing_committed_after(found: Found, number: int) -> bool:
    return not any(each.state in COMMITTED for name, each in found.items() if name.number > number)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The checkpoint to resume; `reason` is set if it is not the requested one."""

    checkpoint: Location | None
    reason: str = ""


@dataclass(slots=True)
class _Topics:
    pipeline: str
    subtasks: int
    sinks: Mapping[str, KafkaSink]
    admins: dict[str, KafkaAdmin] = field(default_factory=dict)

    def id(self, job: str, name: Name) -> str:
        return f"{transaction_prefix(self.pipeline, NAMES[name.key], job)}-{name.subtask}-{name.number}"

    def find(self, job: str, first: int, last: int) -> dict[Name, Transaction]:
        """Return the job's transactions from number `first` to `last`, and beyond until `SKIPPED` numbers
        have none.
        """
        found: dict[Name, Transaction] = {}
        for begin in range(max(1, first), last + 1 + MAX_SINCE, SKIPPED):
            more: dict[Name, Transaction] = {}
            for key, admin in self.admins.items():
                names = [
                    Name(key, subtask, number)
                    for subtask in range(self.subtasks)
                    for number in range(begin, begin + SKIPPED)
                ]
                ids = {self.id(job, name): name for name in names}
                more |= {ids[id]: each for id, each in admin.transactions(ids).items()}
            found |= more
            if begin > last and not more:
                break
        return found

    def commit(self, job: str, names: Iterable[tuple[Name, Transaction]]) -> bool:
        """Return False if something else ended one of them."""
        return all(commit(self.sinks[name.key].cluster(), self.id(job, name), each) for name, each in names)

    def abort(self, job: str, found: Found) -> None:
        for key, admin in self.admins.items():
            begun = [name for name, each in found.items() if name.key == key and each.state == OPEN]
            if begun:
                admin.abort(self.id(job, name) for name in begun)


def end_transactions(
    spec: PipelineSpec, before: RunState, checkpoint: Location | None, *, chosen: bool = False
) -> Recovered:
    """End the transactions of the last job and of the job that wrote `checkpoint`; blocks.

    `before` records the last run. If Kafka aborted the checkpoint's transactions (downtime beyond
    `transaction_timeout_s`, or a checkpoint that the earlier job considered failed), the newest checkpoint
    without later commits is resumed instead, unless `checkpoint` was `chosen` by hand. Raises `SettingError`
    if there is none, `KafkaAway` and `KafkaRefused`.
    """
    sinks = {key: sink for key, sink in spec.topics().items() if sink.guarantee == "exactly-once"}
    if not sinks:
        return Recovered(checkpoint)
    topics = _Topics(spec.name, max(spec.parallelism, before.parallelism or 1), sinks)
    with ExitStack() as open_:
        for key, sink in sinks.items():
            topics.admins[key] = open_.enter_context(kafka_admin(sink.cluster(), START_TIMEOUT_S))
        recovered = Recovered(checkpoint)
        if checkpoint is not None:
            recovered = _end_resumed(spec, topics, checkpoint, chosen=chosen)
        if before.job is not None and (checkpoint is None or job_of(checkpoint) != before.job):
            # Its numbers continue from the checkpoint that it was started from.
            restored = 0 if checkpoint is None else number_of(checkpoint)
            last = max(restored, 0 if before.completed is None else before.completed.number)
            topics.abort(before.job, topics.find(before.job, max(restored + 1, last - SKIPPED), last))
    return recovered


def _end_resumed(spec: PipelineSpec, topics: _Topics, checkpoint: Location, *, chosen: bool) -> Recovered:
    job, number = job_of(checkpoint), number_of(checkpoint)
    others = open_store(location_of(spec.checkpoint.dir)).checkpoints(job)
    older = [(each.number, each.path) for each in others if each.number < number]
    for _ in range(TRIES):
        found = topics.find(job, min([number, *(each for each, _ in older)]) - SKIPPED, number)
        recovered, resumed = Recovered(checkpoint), number
        if not chosen:
            recovered, resumed = _resumable(spec, topics, job, found, [(number, checkpoint), *older])
            due = [item for item in found.items() if item[0].number <= resumed and item[1].state == OPEN]
            if not topics.commit(job, due):
                continue
        topics.abort(job, {name: each for name, each in found.items() if name.number > resumed})
        return recovered
    raise SettingError(
        f"checkpoint {checkpoint}: another run of pipeline {spec.name!r} ends its transactions in Kafka; "
        f"stop that run, and start again"
    )


def _resumable(
    spec: PipelineSpec,
    topics: _Topics,
    job: str,
    found: Found,
    checkpoints: Sequence[tuple[int, Location]],
) -> tuple[Recovered, int]:
    """Return the newest of `checkpoints` (newest first) that neither loses nor repeats results."""
    (number, checkpoint), *older = checkpoints
    missing = lost(found, number)
    if not missing:
        return Recovered(checkpoint), number
    names = ", ".join(topics.id(job, name) for name in missing)
    # Results that went to a file with this checkpoint may be visible already.
    if len(topics.sinks) == len(spec.sinks()):
        for earlier, path in older:
            if not lost(found, earlier) and nothing_committed_after(found, earlier):
                reason = f"Kafka has aborted {names} with results of checkpoint {number}"
                return Recovered(path, f"{reason}, which will be repeated"), earlier
    again = f"Resume with --from-checkpoint {older[0][1]} to repeat them, or" if older else "Resume"
    raise SettingError(
        f"{missing[0].key}.topic: Kafka has aborted {names} with results of checkpoint {number}: open for "
        f"longer than transaction_timeout_s ({topics.sinks[missing[0].key].transaction_timeout_s:g}), or "
        f"ended by another run. {again} with --from-checkpoint {checkpoint} to continue without them"
    )
