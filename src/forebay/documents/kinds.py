"""Settings of several kinds, of which a file names one by the key `type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from forebay.documents.fields import wrong
from forebay.errors import SettingError


@dataclass(frozen=True)
class OneOf:
    """Marks a field whose value is settings of the kind that its `type` names; all are subclasses of `base`.

    `names` are those that there are, and `find` gives the settings of a name: None for a name that there is
    not. It raises `SettingError` where the kind cannot be loaded, which becomes a mistake in the file. `own`
    are the kinds for the reference, by name.
    """

    base: type[BaseModel]
    names: Callable[[], Sequence[str]]
    find: Callable[[str], type[BaseModel] | None]
    own: Callable[[], Mapping[str, type[BaseModel]]]

    def model_of(self, value: object) -> type[BaseModel]:
        """The settings that `value` is of, as far as it says."""
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
        # What is wrong within becomes a part of what is wrong with the whole.
        return model.model_validate(value, context=info.context)
