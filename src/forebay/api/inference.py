"""The user's settings for the model: servers, routing, prompt, schema, retries."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from forebay.api.models import AnswerModel
from forebay.engine import EngineFactory
from forebay.engine.answer import AnswerCheck
from forebay.engine.journal import JournalConfig
from forebay.engine.prompt import FieldTemplate, PromptTemplate
from forebay.engine.prompt.template import Api
from forebay.engine.replica import ContextNeed, ServedModel, answer_need, check_context
from forebay.engine.retry import RetryPolicy
from forebay.errors import SettingError
from forebay.fleet.cache_subscriber import check_form
from forebay.fleet.config import DEFAULT_POLICY, FleetConfig, check_policy, stall_s_for
from forebay.fleet.disaggregated import check_prefill, engine_factory
from forebay.fleet.discovery import (
    DnsReplicas,
    FileReplicas,
    FixedReplicas,
    ReplicaList,
    check_served,
    discover_model,
)
from forebay.fleet.endpoints import KubernetesReplicas
from forebay.flink.request_handler import InferenceSpec
from forebay.records import JSON, Message, Sampling
from forebay.settings import SecretRef

if TYPE_CHECKING:
    from pydantic import BaseModel


T = TypeVar("T")
ASKED_S = 3.0
SILENT_S = 3.0

log = logging.getLogger("forebay")


@dataclass(frozen=True, init=False)
class Fleet:
    """Several servers of the same model. Give URLs, or `file`, or `dns`, or `kubernetes`.

    Args:
        urls: One URL per server.
        file: Path of a file with one URL per line. The file may change while the job runs.
        dns: `http://NAME:PORT`; every address of the name is a server, looked up again as the job runs.
        kubernetes: `[NAMESPACE/]SERVICE[:PORT]`; every ready endpoint of the Service is a server.
        routing: Name of a routing policy. By default, a request goes to the server that will answer it
            soonest, and waits while all servers are full.
        kv_events: Address at which vLLM publishes the contents of its caches, such as `tcp://{host}:5557`;
            None: it does not.
        prefill: URLs of servers (or a fleet) that prefill prompts and hand over their KV cache; the others
            then only decode.

    Raises `SettingError` for a wrong argument. Contacts no server.

    >>> fleet = fb.Fleet("http://gpu-1:8000", "http://gpu-2:8000", routing="session_affinity")
    >>> ask = fb.Inference(fleet, model="smollm2-135m-instruct", prompt="{{ text }}")
    """

    replicas: ReplicaList
    routing: str
    kv_events: str | None
    prefill: ReplicaList | None

    def __init__(
        self,
        *urls: str,
        file: str | None = None,
        dns: str | None = None,
        kubernetes: str | None = None,
        routing: str = DEFAULT_POLICY,
        kv_events: str | None = None,
        prefill: Sequence[str] | Fleet = (),
    ) -> None:
        if sum(value is not None for value in (urls or None, file, dns, kubernetes)) != 1:
            raise SettingError("a fleet needs one of: URLs, file=, dns=, kubernetes=")
        replicas: ReplicaList
        if file is not None:
            replicas = FileReplicas(str(file))
        elif dns is not None:
            replicas = DnsReplicas(dns)
        elif kubernetes is not None:
            replicas = KubernetesReplicas(kubernetes)
        else:
            replicas = FixedReplicas(urls)
        check_policy(routing)
        if kv_events is not None:
            check_form(kv_events)
        object.__setattr__(self, "replicas", replicas)
        object.__setattr__(self, "routing", routing)
        object.__setattr__(self, "kv_events", kv_events)
        object.__setattr__(self, "prefill", _prefill(prefill))

    def factory(
        self, model: str, *, api_key: SecretRef | None, timeout_s: float, deadline_s: float, capacity: int
    ) -> EngineFactory:
        fleet = FleetConfig(
            self.replicas,
            model=model,
            api_key=api_key,
            routing=self.routing,
            kv_events=self.kv_events,
            stall_s=stall_s_for(timeout_s),
            capacity=capacity,
            deadline_s=deadline_s,
        )
        return engine_factory(fleet, self.prefill)


def _prefill(given: Sequence[str] | Fleet) -> ReplicaList | None:
    if not isinstance(given, Fleet):
        return FixedReplicas(tuple(given)) if given else None
    if given.prefill is not None:
        raise SettingError("prefill: expected servers that prefill, found a fleet with 'prefill' of its own")
    return given.replicas


@dataclass(frozen=True)
class Inference:
    """How an event becomes an answer: server, model, prompt, schema and retries.

    It opens no connection and reads no secret. Share it, copy it with `dataclasses.replace`, use it for
    several operators.

    With a `schema`, the engine is made to follow it and every answer is checked. If an answer breaks it, or a
    validator of the pydantic model rejects it, the request is repeated; after `retry.max_invalid_answers`
    tries the event becomes a dead letter.

    Attributes:
        engine: URL of a server with the OpenAI protocol, several URLs, or a `Fleet`. For tests, a
            `ScriptedEngineFactory`.
        model: The model's name, checked against the server if it answers when the operator is created. If the
            server serves one model, the name may be left out: the operator then reads it from the server.
        prompt: A Jinja template: the user's message, or with `api="completions"` the plain prompt. It sees
            the event's fields by name, and `key` and `time_ms`.
        messages: Templates of a whole chat, instead of `prompt`.
        api: `"chat"` or `"completions"`.
        schema: A JSON schema, or a pydantic model: answers are then its instances.
        sampling: How the engine picks tokens.
        timeout_s: Maximum time without progress in one call, in seconds.
        deadline_s: Maximum time for all calls for one event, in seconds.
        retry: Which errors are retried, and when.
        capacity: Maximum number of requests in flight per subtask; beyond it the source waits.
        journal: Path of a file that keeps answers: the same request gets the same answer again, even after a
            restart. Created if it does not exist.
        priority: Template of a whole number; lower goes first.
        send_priority: Send the priority to the server as well.
        answer_tokens: Template of the maximum length of an event's answer, in tokens; None:
            `sampling.max_tokens` for all.
        api_key: Where to find the key, `{"env": NAME}` or `{"file": PATH}`; never the key itself.

    Raises `SettingError` for a wrong argument.

    >>> class Topic(pydantic.BaseModel):
    ...     word: str
    >>> ask = fb.Inference("http://127.0.0.1:8100", prompt="What is this about? {{ text }}", schema=Topic)
    >>> env = fb.environment()
    >>> answered = fb.infer(env.from_collection(["My router blinks red."]), ask)
    >>> with answered.results.execute_and_collect() as results:
    ...     [type(result.answer).__name__ for result in results]
    ['Topic']
    """

    engine: str | Sequence[str] | Fleet | EngineFactory
    _: KW_ONLY
    model: str | None = None
    prompt: str | None = None
    messages: Sequence[Message] = ()
    api: Api = "chat"
    schema: Mapping[str, JSON] | type[BaseModel] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    timeout_s: float = 60.0
    deadline_s: float = 300.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    capacity: int = 64
    journal: str | Path | None = None
    priority: str | None = None
    send_priority: bool = False
    answer_tokens: str | None = None
    api_key: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.messages, str) or not isinstance(self.messages, Sequence):
            raise SettingError(f"messages: expected a list of Message, found {_kind(self.messages)}")
        object.__setattr__(self, "messages", tuple(self.messages))
        _check_types(self)
        self.answer_model()
        self.spec("checked")

    def answer_model(self) -> AnswerModel | None:
        return AnswerModel(self.schema) if isinstance(self.schema, type) else None

    def spec(self, model: str) -> InferenceSpec:
        answers = self.answer_model()
        schema = answers.schema() if answers else cast("Mapping[str, JSON] | None", self.schema)
        if schema is not None:
            AnswerCheck(schema, where="schema")
        asked = self.prompt is not None or self.messages
        return InferenceSpec(
            self._engine(model),
            model=model,
            prompt=PromptTemplate(self.prompt, self.messages, api=self.api) if asked else None,
            schema=schema,
            accept=answers,
            sampling=self.sampling,
            timeout_s=self.timeout_s,
            deadline_s=self.deadline_s,
            retry=self.retry,
            journal=None if self.journal is None else JournalConfig(Path(self.journal)),
            priority=None if self.priority is None else FieldTemplate(self.priority, what="priority"),
            send_priority=self.send_priority,
            answer_tokens=None
            if self.answer_tokens is None
            else FieldTemplate(self.answer_tokens, what="answer_tokens"),
        )

    def templates(self) -> list[tuple[str, str]]:
        found = [(f"messages[{i}].content", each.content) for i, each in enumerate(self.messages)]
        named = [
            ("prompt", self.prompt),
            ("priority", self.priority),
            ("answer_tokens", self.answer_tokens),
        ]
        return [*found, *((what, text) for what, text in named if text is not None)]

    def served_model(self, need: ContextNeed | None = None) -> str:
        """The model's name, checked against the servers; blocks.

        If `model` was left out, waits for the servers for at most `deadline_s` and returns the one model that
        they serve; otherwise waits for at most `ASKED_S`, and a server that does not answer may start later.
        `need` is the context of the largest call; None: that of an answer.

        Raises `SettingError` if the servers serve several models or not this one, if the model's context is
        known to be too short, or if no server of the fleet's `prefill` supports this model; `PipelineFailed`
        if `model` was left out and no server answered. Warnings are logged.
        """
        fleet = self.fleet()
        if fleet is None:
            # There is no server to query: only the factory gives the name a meaning.
            return self.model or str(getattr(self.engine, "model", "none"))
        served = self._served_model(fleet)
        check_context(need or answer_need(self.sampling.max_tokens), served)
        model = served.name
        if fleet.prefill is not None:
            check = partial(
                check_prefill,
                fleet.prefill,
                model,
                chat=self.api == "chat",
                api_key=self.secret(),
                key="prefill",
            )
            if text := _beside(check):
                log.warning("%s", text)
        return model

    def _served_model(self, fleet: Fleet) -> ServedModel:
        if self.model is not None:
            check = partial(
                check_served,
                fleet.replicas,
                self.model,
                api_key=self.secret(),
                within_s=ASKED_S,
                key="model",
            )
            return _beside(check)
        discover = partial(
            discover_model,
            fleet.replicas,
            None,
            api_key=self.secret(),
            retry=self.retry,
            deadline_s=self.deadline_s,
            keys=("engine", "model"),
            note=NoteOnce(SILENT_S),
        )
        return _beside(discover)

    def fleet(self) -> Fleet | None:
        if isinstance(self.engine, Fleet):
            return self.engine
        if isinstance(self.engine, str):
            return Fleet(self.engine)
        return Fleet(*self.engine) if isinstance(self.engine, Sequence) else None

    def secret(self) -> SecretRef | None:
        return None if self.api_key is None else SecretRef(**self.api_key)

    def _engine(self, model: str) -> EngineFactory:
        fleet = self.fleet()
        if fleet is None:
            return cast(EngineFactory, self.engine)
        return fleet.factory(
            model,
            api_key=self.secret(),
            timeout_s=self.timeout_s,
            deadline_s=self.deadline_s,
            capacity=self.capacity,
        )


def _check_types(given: Inference) -> None:
    engine: Any = given.engine
    if not isinstance(engine, str | Sequence | Fleet) and not callable(engine):
        raise SettingError(f"engine: expected a URL, a list of URLs or a Fleet, found {_kind(engine)}")
    for name in ("model", "prompt", "priority", "answer_tokens"):
        value = getattr(given, name)
        if value is not None and (not isinstance(value, str) or not value):
            raise SettingError(f"{name}: expected a text, found {_found(value)}")
    for message in given.messages:
        if not isinstance(message, Message):
            raise SettingError(f"messages: expected a list of Message, found {_kind(message)} in it")
    if given.api not in ("chat", "completions"):
        raise SettingError(f"api: expected chat or completions, found {_found(given.api)}")
    if given.schema is not None and not isinstance(given.schema, Mapping | type):
        raise SettingError(f"schema: expected a JSON schema or a pydantic model, found {_kind(given.schema)}")
    for name in ("timeout_s", "deadline_s"):
        value = getattr(given, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise SettingError(f"{name}: expected a number of seconds above 0, found {_found(value)}")
    if type(given.capacity) is not int or given.capacity < 1:
        raise SettingError(f"capacity: expected a whole number above 0, found {_found(given.capacity)}")
    if not isinstance(given.sampling, Sampling):
        raise SettingError(f"sampling: expected a Sampling, found {_kind(given.sampling)}")
    if not isinstance(given.retry, RetryPolicy):
        raise SettingError(f"retry: expected a RetryPolicy, found {_kind(given.retry)}")
    if given.journal is not None and not isinstance(given.journal, str | Path):
        raise SettingError(f"journal: expected the path of a file, found {_kind(given.journal)}")
    if type(given.send_priority) is not bool:
        raise SettingError(f"send_priority: expected True or False, found {_found(given.send_priority)}")
    key: Any = given.api_key
    if key is not None:
        where = isinstance(key, Mapping) and len(key) == 1 and set(key) <= {"env", "file"}
        if not where or not all(isinstance(name, str) and name for name in key.values()):
            # The value may be the key itself.
            raise SettingError('api_key: expected {"env": NAME} or {"file": PATH}, never the key itself')


class NoteOnce:
    """Logs at `WARNING`, once, the reason of a wait of `after_s` seconds."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._reported = False

    def __call__(self, text: str, waited_s: float) -> None:
        if waited_s >= self._after_s and not self._reported:
            self._reported = True
            log.warning("%s", text)


def _beside(ask: Callable[[], T]) -> T:
    """In a thread, because a notebook has an event loop of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(ask).result()


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def _found(value: object) -> str:
    return repr(value)[:80]
