"""The uids of inference operators, which hold their number of shards: `NAME: N shards`."""

from __future__ import annotations

import re
from typing import Any

from forebay.errors import SettingError

UID = re.compile(r"(?P<name>.*): (?P<shards>\d+) shards", re.DOTALL)


def shards_uid(env: Any, name: str, shards: int, *, bound: bool) -> str:
    """The uid of the operator `name`, by which Flink finds its state.

    If the job restores a checkpoint with another number of `shards`, the uid keeps that number; if the number
    is `bound` (a key's state or order depends on it), raises `SettingError`.
    """
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
    """The operator's name in a uid."""
    found = UID.fullmatch(uid or "")
    return uid if found is None else found["name"]


def restored_uids(env: Any) -> frozenset[str] | None:
    """The uids of all operators in the checkpoint or savepoint that `env` restores; None if there is none, or
    it cannot be read here."""
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
    """The operator states in a checkpoint or savepoint. Raises `Py4JError` if it cannot be read."""
    flink = jvm.org.apache.flink
    path = flink.core.fs.Path(checkpoint, "_metadata")
    data = jvm.java.io.DataInputStream(path.getFileSystem().open(path))
    try:
        loader = jvm.Thread.currentThread().getContextClassLoader()
        metadata = flink.runtime.checkpoint.Checkpoints.loadCheckpointMetadata(data, loader, checkpoint)
    finally:
        data.close()
    return jvm.java.util.ArrayList(metadata.getOperatorStates())
