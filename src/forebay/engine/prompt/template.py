"""Prompt templates (event fields to messages or a prompt), and a request's id and content hash.

Variables: every field of the event by its name, `event` (the object of all fields, for names such as
`event["user id"]`), `key` and `time_ms`. The last three win over fields of the same name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from jinja2 import TemplateError, UndefinedError, meta
from jinja2.environment import Template

from forebay.engine.prompt.rendering import Budgeted, FieldMissing, with_nulls
from forebay.engine.prompt.sandbox import PromptEnvironment, names_of
from forebay.errors import SettingError, TemplateFailed
from forebay.records import JSON, Event, Message, Request
from forebay.untrusted_text import between

MAX_PROMPT_CHARS = 1_048_576
MAX_FIELD_CHARS = 1024
MAX_MESSAGES = 64
WORK_PER_CHAR = 16

RESERVED = frozenset(("event", "key", "time_ms"))

Api = Literal["chat", "completions"]


class PromptTemplate:
    """Turns events into prompts. Immutable, picklable (compiles again when unpickled), thread-safe.

    Either one `prompt`, sent as a single user message (`api="chat"`) or as a plain completion
    (`api="completions"`), or `messages` whose contents are templates, for the chat API only.

    Values of `{{ … }}` cannot form a model's special tokens (`escape_special_tokens`), nor complete one that
    the template's text begins with `<` or `[`; whole tokens in the template's own text are kept.
    `escape=False` leaves values unchanged, for fields of a trusted author.

    Raises `SettingError` at construction, with the template, the line and the problem.
    """

    def __init__(
        self,
        prompt: str | None = None,
        messages: Sequence[Message] = (),
        *,
        api: Api = "chat",
        max_chars: int = MAX_PROMPT_CHARS,
        escape: bool = True,
    ) -> None:
        if (prompt is None) == (not messages):
            raise SettingError("a prompt template needs either a prompt or messages, and not both")
        if messages and api == "completions":
            raise SettingError("messages need the chat API; give a prompt, or choose api: chat")
        if len(messages) > MAX_MESSAGES:
            raise SettingError(f"messages has {len(messages)} entries; at most {MAX_MESSAGES} are taken")
        if max_chars < 1:
            raise SettingError(f"max_chars must be at least 1, found {max_chars}")
        self.prompt = prompt
        self.messages = tuple(messages)
        self.api: Api = api
        self.max_chars = max_chars
        self.escape = escape
        environment = PromptEnvironment(escape=escape)
        if prompt is not None:
            self._parts = [("user", _Part(environment, prompt, "prompt"))]
        else:
            self._parts = [
                (message.role, _Part(environment, message.content, f"messages[{i}].content"))
                for i, message in enumerate(self.messages)
            ]

    def render(
        self, fields: Mapping[str, JSON], *, key: str | None = None, time_ms: int | None = None
    ) -> tuple[Message, ...] | str:
        """The messages, or with `api` completions the prompt, for an event with these fields.

        Raises `TemplateFailed` with the missing field or the exceeded limit.
        """
        names = with_nulls(fields, event=fields, key=key, time_ms=time_ms)
        left = self.max_chars
        rendered = []
        for role, part in self._parts:
            text = part.render(names, left)
            left -= len(text)
            rendered.append((role, text))
        if self.api == "completions":
            return rendered[0][1]
        return tuple(Message(role, text) for role, text in rendered)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "messages": self.messages,
            "api": self.api,
            "max_chars": self.max_chars,
            "escape": self.escape,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        PromptTemplate.__init__(self, **state)


class FieldTemplate:
    """Turns events into one short text without surrounding white space: a key or an id. Immutable, picklable,
    thread-safe.

    Variables are the fields, `event` and `time_ms`. With `required`, an empty text raises `FieldMissing`.
    """

    def __init__(self, text: str, *, what: str = "key", required: bool = False) -> None:
        self.text = text
        self.what = what
        self.required = required
        self._part = _Part(PromptEnvironment(), text, what)

    def render(self, fields: Mapping[str, JSON], *, time_ms: int | None = None) -> str:
        """At most `MAX_FIELD_CHARS` long. Raises `TemplateFailed`."""
        names = with_nulls(fields, event=fields, time_ms=time_ms)
        text = self._part.render(names, MAX_FIELD_CHARS).strip()
        if self.required and not text:
            raise FieldMissing(f"{self.what}: {self.text!r} is empty for this record")
        return text

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text, "what": self.what, "required": self.required}

    def __setstate__(self, state: dict[str, Any]) -> None:
        FieldTemplate.__init__(self, **state)


@lru_cache(maxsize=64)
def fields_in(source: str, what: str = "template") -> frozenset[str]:
    """The top-level fields that a template uses. Raises `SettingError`, with `what`, if it does not
    compile.
    """
    environment = PromptEnvironment()
    environment.template(source, what)
    return frozenset(meta.find_undeclared_variables(environment.parse(source))) - RESERVED


def is_constant(source: str) -> bool:
    return not meta.find_undeclared_variables(PromptEnvironment().parse(source))


class _Part:
    def __init__(self, environment: PromptEnvironment, source: str, what: str) -> None:
        self.what = what
        self.environment = environment
        self.template: Template = environment.template(source, what)

    def render(self, names: dict[str, Any], max_chars: int) -> str:
        context = Budgeted(self.environment, names, WORK_PER_CHAR * max(max_chars, MAX_FIELD_CHARS))
        chunks: list[str] = []
        length = 0
        try:
            for piece in self.template.root_render_func(context):
                gap = between(chunks[-1], piece) if self.environment.escape and chunks else ""
                chunk = gap + piece
                length += len(chunk)
                if length > max_chars:
                    raise TemplateFailed(f"{self.what} is longer than {max_chars} characters for this record")
                if chunk:
                    chunks.append(chunk)
        except UndefinedError as error:
            raise FieldMissing(f"{self.what}: {error.message}{_at_top(error, names)}") from None
        except TemplateFailed as error:
            raise type(error)(_named(self.what, str(error))) from None
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise TemplateFailed(f"{self.what}: {type(error).__name__}: {str(error)[:200]}") from None
        except Exception as error:
            # Any other error in a template is this record's fault, and must not fail the job.
            raise TemplateFailed(f"{self.what}: {type(error).__name__}") from None
        text = "".join(chunks)
        if not text.isascii() and _has_lone_surrogate(text):
            raise TemplateFailed(
                f"{self.what} holds half a character (a lone surrogate) and is not valid text"
            )
        return text


def _at_top(error: UndefinedError, names: dict[str, Any]) -> str:
    event = names["event"]
    return f"; the event has {names_of(event)}" if str(error.message).endswith("is missing") else ""


def _named(what: str, message: str) -> str:
    return message if message.startswith(what) else f"{what}: {message}"


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


HASH_BYTES = 16


def request_id(event: Event, key: str, explicit: str | None) -> str:
    """The id of the request for `event`: a pure function of the record.

    In this order: `explicit` (the pipeline's `id` template), the record's position, a hash of its raw bytes
    and key.
    """
    if explicit is not None:
        return explicit
    if event.position is not None:
        return event.position
    encoded_key = key.encode(errors="surrogatepass")
    digest = hashlib.blake2b(len(encoded_key).to_bytes(8, "big"), digest_size=HASH_BYTES)
    digest.update(encoded_key)
    digest.update(event.raw)
    return digest.hexdigest()


def request_hash(request: Request) -> str:
    """64 hex digits of what determines the answer: model, prompt or messages, sampling and schema; not the
    id.
    """
    sampling = request.sampling
    asked = {
        "model": request.model,
        "messages": [[message.role, message.content] for message in request.messages],
        "prompt": request.prompt,
        "sampling": {
            "max_tokens": sampling.max_tokens,
            "temperature": float(sampling.temperature),
            "top_p": None if sampling.top_p is None else float(sampling.top_p),
            "seed": sampling.seed,
            "stop": list(sampling.stop),
            "extra": dict(sampling.extra),
        },
        "schema": request.schema,
    }
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"), default=dict)
    return hashlib.blake2b(canonical.encode(), digest_size=32).hexdigest()
