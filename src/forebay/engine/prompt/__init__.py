"""From an event to a request: sandboxed templates, the request's id and the hash of what it asks."""

from forebay.engine.prompt.identity import request_hash, request_id
from forebay.engine.prompt.template import FieldTemplate, PromptTemplate

__all__ = ["FieldTemplate", "PromptTemplate", "request_hash", "request_id"]
