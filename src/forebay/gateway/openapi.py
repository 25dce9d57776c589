"""The gateway's OpenAPI description: only what the gateway itself checks."""

from __future__ import annotations

from typing import Any

import orjson

from forebay.engine.protocol import CHAT_PATH, PROMPT_PATH
from forebay.gateway.routes import EMBED_PATH, ROUTES, Route

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
TOKENS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
SEVERAL = {"type": "array", "items": {"anyOf": [TEXT, TOKENS]}, "minItems": 1}
TEXT_OR_TOKENS = {"anyOf": [TEXT, TOKENS, SEVERAL]}
MODEL = {"type": "string", "minLength": 1, "maxLength": 500}

ERRORS = {
    400: "The body is not JSON, or lacks what a call needs.",
    401: "The API key is missing or wrong.",
    403: "The gateway has no keys, and the request comes from a web page (`Origin`).",
    404: "The model is not served, or its engine has no such call.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    422: "The engine rejects this request.",
    429: "The key's limits are reached; `retry-after` has the seconds to wait.",
    500: "The replica failed on this request.",
    502: "The replica broke off before it had begun to answer.",
    503: "No replica takes the request now, or the gateway is draining.",
    504: "No replica began to answer in time.",
}


SCHEMAS = {
    CHAT_PATH: ("ChatRequest", "Completion"),
    PROMPT_PATH: ("CompletionRequest", "Completion"),
    EMBED_PATH: ("EmbeddingRequest", "Embeddings"),
}


def _schema(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(description: str, schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": schema}}}


def _errors(*statuses: int, schema: str = "Error") -> dict[str, Any]:
    return {str(status): _answer(ERRORS[status], _schema(schema)) for status in statuses}


def _call(route: Route) -> dict[str, Any]:
    asked, answered = SCHEMAS.get(route.path, ("Form" if route.form else "Call", "Answer"))
    whole = _answer("The answer, byte for byte as the engine sends it.", _schema(answered))
    if route.streams:
        whole["content"]["text/event-stream"] = {}
    errors = "AnthropicError" if route.dialect == "anthropic" else "Error"
    kind = "multipart/form-data" if route.form else "application/json"
    return {
        "post": {
            "operationId": route.path.strip("/").replace("/", "_"),
            "summary": route.summary,
            "security": [{"key": []}],
            "requestBody": {"required": True, "content": {kind: {"schema": _schema(asked)}}},
            "responses": {"200": whole, **_errors(*ERRORS, schema=errors)},
        }
    }


def _get(
    id: str, summary: str, answers: dict[str, Any], *, secured: bool = False, **more: object
) -> dict[str, Any]:
    security: list[dict[str, list[str]]] = [{"key": []}] if secured else []
    return {
        "get": {"operationId": id, "summary": summary, "security": security, "responses": answers, **more}
    }


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


STREAM = {"type": ["boolean", "null"], "description": "Send the answer as server-sent events."}
ANSWER = _object({"id": TEXT, "object": TEXT, "model": TEXT, "choices": {"type": "array"}})
STATE = _object(
    {
        "status": {"enum": ["ok", "draining", "no_replica"]},
        "replicas": _object({"available": COUNT, "known": COUNT}),
        "in_flight": COUNT,
    }
)
MESSAGE = _object({"role": TEXT}, {"content": {}})

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Forebay gateway",
        "version": "1",
        "description": "An OpenAI-compatible front of a fleet.",
    },
    "paths": {
        **{route.path: _call(route) for route in ROUTES.values()},
        "/v1/models": _get(
            "models",
            "The models that a replica serves.",
            {"200": _answer("The models.", _schema("Models")), **_errors(401, 403, 429, 500, 502, 503, 504)},
            secured=True,
        ),
        "/v1/models/{model}": _get(
            "model",
            "One of the models.",
            {
                "200": _answer("The model.", _schema("Model")),
                **_errors(401, 403, 404, 429, 500, 502, 503, 504),
            },
            secured=True,
            parameters=[{"name": "model", "in": "path", "required": True, "schema": MODEL}],
        ),
        "/health": _get(
            "health",
            "Whether requests are taken.",
            {
                "200": _answer("They are.", _schema("State")),
                "503": _answer("Draining, or no replica is available.", _schema("State")),
            },
        ),
        "/metrics": _get(
            "metrics", "Metrics for Prometheus.", {"200": _answer("The metrics.", TEXT, "text/plain")}
        ),
        "/openapi.json": _get(
            "description", "This description.", {"200": _answer("It.", {"type": "object"})}
        ),
    },
    "components": {
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        "schemas": {
            "ChatRequest": _object(
                {"model": MODEL, "messages": {"type": "array", "items": MESSAGE, "minItems": 1}},
                {"stream": STREAM},
            ),
            "CompletionRequest": _object({"model": MODEL, "prompt": TEXT_OR_TOKENS}, {"stream": STREAM}),
            "EmbeddingRequest": _object({"model": MODEL, "input": TEXT_OR_TOKENS}, {"stream": STREAM}),
            "Call": {"type": "object", "properties": {"model": MODEL, "stream": STREAM}},
            "Form": {"type": "object", "properties": {"model": MODEL}},
            "Answer": {},
            "Model": _object({"id": TEXT, "object": TEXT}),
            "Completion": ANSWER,
            "Embeddings": _object({"object": TEXT, "model": TEXT, "data": {"type": "array"}}),
            "Models": _object({"object": TEXT, "data": {"type": "array"}}),
            "State": STATE,
            "AnthropicError": _object({"type": TEXT, "error": _object({"type": TEXT, "message": TEXT})}),
            "Error": _object(
                {
                    "error": _object(
                        {
                            "message": TEXT,
                            "type": TEXT,
                            "param": {"type": ["string", "null"]},
                            "code": {"type": ["string", "integer", "null"]},
                        }
                    )
                }
            ),
        },
    },
}
DESCRIPTION = orjson.dumps(DOCUMENT)
