"""From an event to a request: sandboxed templates, the request's id, and the hash of its content."""

from forebay.engine.prompt.rendering import FieldMissing
from forebay.engine.prompt.sandbox import names_of
from forebay.engine.prompt.template import (
    FieldTemplate,
    PromptTemplate,
    fields_in,
    is_constant,
    request_hash,
    request_id,
)

__all__ = [
    "FieldMissing",
    "FieldTemplate",
    "PromptTemplate",
    "fields_in",
    "is_constant",
    "names_of",
    "request_hash",
    "request_id",
]
