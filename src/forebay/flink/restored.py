"""What the checkpoint that a job restores says of shards, which has to be known as the job is built.

Where the shards of `infer` lie is known by its uid in the checkpoint: `NAME: N shards`. A bare `NAME` is of a
version that meant to spread shards evenly over subtasks and did not (`flink_keys` without `even`); its state,
and that of the stages before it, lives on under the keys that it has.
"""

from __future__ import annotations

import re
from typing import Any

from forebay.errors import SettingError

UID = re.compile(r"(?P<name>.*): (?P<shards>\d+) shards", re.DOTALL)


def even_shards(env: Any, name: str) -> bool:
    """Whether the shards of `infer` of this `name`, and those of the stages before it, fall evenly on
    subtasks in the job that is built in `env`: always, but where it restores the state that a version has
    left in which they did not."""
    return name not in (restored_uids(env) or ())


def shards_uid(env: Any, name: str, shards: int, *, bound: bool) -> str:
    """The uid of the operator `name` with so many `shards`, by which its state is found.

    A checkpoint's number of shards stays in the uid where another may be given now. Raises `SettingError`
    where it may not: `bound` says that the place of a key's state or the order of its events hangs on it.
    """
    if not even_shards(env, name):
        return name
    for uid in restored_uids(env) or ():
        found = UID.fullmatch(uid)
        if found is None or found["name"] != name:
            continue
        if bound and int(found["shards"]) != shards:
            raise SettingError(
                f"shards: expected {found['shards']}, as in the checkpoint that {name!r} resumes from, found "
                f"{shards}: the events of a key would lose their order, and a program the state of its keys. "
                f"Keep the number, or start over with another directory of checkpoints"
            )
        return uid
    return f"{name}: {shards} shards"


def name_of(uid: str | None) -> str | None:
    """The operator's name in a uid of `shards_uid`; any other as it is."""
    found = UID.fullmatch(uid or "")
    return uid if found is None else found["name"]


def restored_uids(env: Any) -> frozenset[str] | None:
    """The uids of all operators in the checkpoint or savepoint that `env` restores; None where there is none,
    or it cannot be read here."""
    from py4j.protocol import Py4JError
    from pyflink.java_gateway import get_gateway

    jvm = get_gateway().jvm
    options = env._j_stream_execution_environment.getConfiguration()
    checkpoint = options.get(jvm.org.apache.flink.configuration.StateRecoveryOptions.SAVEPOINT_PATH)
    if checkpoint is None:
        return None
    try:
        uids = (operator.getOperatorUid() for operator in operator_states(jvm, checkpoint))
        return frozenset(str(uid.get()) for uid in uids if uid.isPresent())
    except Py4JError:
        return None


def operator_states(jvm: Any, checkpoint: str) -> Any:
    """What a checkpoint or savepoint holds of each operator. Raises `Py4JError` where it cannot be read."""
    flink = jvm.org.apache.flink
    path = flink.core.fs.Path(checkpoint, "_metadata")
    data = jvm.java.io.DataInputStream(path.getFileSystem().open(path))
    try:
        loader = jvm.Thread.currentThread().getContextClassLoader()
        metadata = flink.runtime.checkpoint.Checkpoints.loadCheckpointMetadata(data, loader, checkpoint)
    finally:
        data.close()
    return jvm.java.util.ArrayList(metadata.getOperatorStates())
