"""Field types of settings files, with their bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from forebay.clients.s3.location import is_s3, s3_path
from forebay.errors import SettingError
from forebay.settings import SecretRef, read_secret


class Model(BaseModel):
    """Base of all settings: frozen, no unknown keys, no input in errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)


def wrong(message: str) -> PydanticCustomError:
    """An error with a complete message: what was expected and, if it may be shown, what was found."""
    return PydanticCustomError("forebay", "{message}", {"message": message})


def refuse_conflicts(problems: Iterable[tuple[str, str]]) -> None:
    """Raise one error with all `problems` (path of a key, message) of settings that do not fit together."""
    found = list(problems)
    if found:
        message = "; ".join(f"{key}: {text}" for key, text in found)
        raise PydanticCustomError("together", "{message}", {"message": message, "problems": found})


def _local(value: str, info: ValidationInfo) -> str:
    if not value or "\0" in value:
        raise wrong("expected a path, found none")
    if value.startswith("~"):
        raise wrong(f"expected a path without '~', found {value!r}; write the full path")
    if "://" in value:
        raise wrong(f"expected a path on this machine, found {value!r}")
    base: Path | None = (info.context or {}).get("base")
    return str(base / value) if base is not None else value


def _folder(value: str, info: ValidationInfo) -> str:
    if not is_s3(value):
        return _local(value, info)
    try:
        return str(s3_path(value))
    except SettingError as error:
        raise wrong(str(error)) from None


def url(schemes: tuple[str, ...]) -> AfterValidator:
    """A URL with one of these schemes, a host, and neither user nor password."""

    def check(value: str) -> str:
        try:
            parts = urlsplit(value)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
            parts = urlsplit("")
        if parts.scheme not in schemes or not host or port == 0 or any(c.isspace() for c in value):
            raise wrong(f"expected a URL such as {schemes[0]}://host:port{_without_secrets(value)}")
        if parts.username is not None or parts.password is not None:
            raise wrong(
                f"expected a URL without user and password for {host}; do not put them into this file"
            )
        return value

    return AfterValidator(check)


def _without_secrets(url: str) -> str:
    return f", found {url[:80]!r}" if not set(url) & set("@?#") else ""


def _not_a_literal(value: Any) -> Any:
    if value is not None and not isinstance(value, dict | Secret):
        raise wrong(
            "expected {env: NAME} or {file: PATH}, found the secret itself; "
            "do not put a key into a shared file: use an environment variable"
        )
    return value


PositiveInt = Annotated[int, Strict(), Field(gt=0)]
AnyInt = Annotated[int, Strict()]
PositiveFloat = Annotated[float, Strict(), Field(gt=0)]
NotNegativeFloat = Annotated[float, Strict(), Field(ge=0)]
MAX_S = 1_000_000_000
"""Largest time that is passed to Flink, which adds it, in milliseconds, to others in 64 bits."""
Switch = Annotated[bool, Strict()]
LocalPath = Annotated[str, AfterValidator(_local)]
"""A path on this machine; relative ones are resolved against the file's folder."""
Folder = Annotated[str, AfterValidator(_folder)]
"""A local folder, like `LocalPath`, or an object store: `s3://bucket/prefix`."""
HttpUrl = Annotated[str, url(("http", "https"))]
FieldPath = Annotated[str, Field(min_length=1, max_length=500)]


def _scalar(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise wrong("expected a text, a number, true or false")
    return value


Scalar = Annotated[str | int | float | bool, BeforeValidator(_scalar)]


class Secret(Model):
    """A reference to a secret: exactly one of the two."""

    env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = Field(
        None, description="Environment variable that holds the secret where the pipeline runs."
    )
    file: LocalPath | None = Field(None, description="File that holds the secret where the pipeline runs.")

    def model_post_init(self, context: Any, /) -> None:
        if (self.env is None) == (self.file is None):
            raise wrong("expected exactly one of 'env' and 'file'")

    def ref(self) -> SecretRef:
        return SecretRef(env=self.env, file=self.file)

    def read(self) -> str:
        """Read the secret now, in this process. Raises `SettingError` if it is missing."""
        return read_secret(self.ref())


def secret_variables(value: object) -> frozenset[str]:
    if isinstance(value, Secret):
        return frozenset(() if value.env is None else (value.env,))
    if isinstance(value, BaseModel):
        parts: Iterable[object] = (part for _, part in value)
    elif isinstance(value, Mapping):
        parts = value.values()
    else:
        parts = value if isinstance(value, list | tuple) else ()
    return frozenset().union(*map(secret_variables, parts))


SecretField = Annotated[Secret, BeforeValidator(_not_a_literal)]


@dataclass(frozen=True)
class OneOf:
    """Marks a field whose settings class depends on its `type`; all are subclasses of `base`.

    `find` returns the class for a name, or None. `own` lists the built-in ones for the reference.
    """

    base: type[BaseModel]
    names: Callable[[], Sequence[str]]
    find: Callable[[str], type[BaseModel] | None]
    own: Callable[[], Mapping[str, type[BaseModel]]]

    def model_of(self, value: object) -> type[BaseModel]:
        kind = value.get("type") if isinstance(value, Mapping) else None
        try:
            found = self.find(kind) if isinstance(kind, str) else None
        except SettingError:
            found = None
        return found or self.base

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        choices = {name: model.__pydantic_core_schema__ for name, model in self.own().items()}
        return handler(core_schema.tagged_union_schema(choices, discriminator="type"))

    def _checked(self, value: Any, info: ValidationInfo) -> BaseModel:
        if isinstance(value, self.base):
            return value
        if not isinstance(value, dict):
            raise PydanticKnownError("dict_type")
        if "type" not in value:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'type'"})
        kind = value["type"]
        try:
            model = self.find(kind) if isinstance(kind, str) else None
        except SettingError as error:
            raise wrong(str(error)) from None
        if model is None:
            names = ", ".join(f"'{name}'" for name in self.names())
            raise PydanticKnownError(
                "union_tag_invalid", {"discriminator": "'type'", "tag": str(kind), "expected_tags": names}
            )
        # Errors inside are reported as part of the whole.
        return model.model_validate(value, context=info.context)
