"""Names that the operators of one environment have: state is found again by them, so each has its own."""

from __future__ import annotations

from typing import Any

from forebay.errors import SettingError


def check_uid_free(env: Any, uid: str, where: str) -> None:
    """Raise `SettingError`, naming `where`, if an operator of the environment has this `uid`.

    What `execute` has taken is forgotten: the same program may be built again.
    """
    if any(operator.getUid() == uid for operator in _operators(env)):
        _refuse(where, uid)


def check_sink_free(env: Any, operator_name: str, where: str, name: str) -> None:
    """Raise `SettingError`, naming `where` and `name`, if an operator of the environment is called
    `operator_name`: for sinks that Flink gives uids of its own."""
    if any(operator.getName() == operator_name for operator in _operators(env)):
        _refuse(where, name)


def _operators(env: Any) -> Any:
    return env._j_stream_execution_environment.getTransformations()


def _refuse(where: str, name: str) -> None:
    raise SettingError(
        f"{where}: name: {name!r} is taken by another operator of this environment; give each a name of its "
        f"own with name=, and keep it: a restart finds state by it"
    )
