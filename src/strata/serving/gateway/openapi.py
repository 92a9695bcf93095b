"""The gateway's API as an OpenAPI document, made from the classes that check its requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from strata.serving.gateway.openai import GenerationRequest

SCHEMAS: Final = "#/components/schemas/"
ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                key: {"type": "string"} if key in ("message", "type") else {"type": ["string", "null"]}
                for key in ("message", "type", "param", "code")
            },
        }
    },
}
REFUSALS: Final = {
    "400": "The request cannot be served as it is; `param` names what is wrong.",
    "401": "A bearer token is needed.",
    "404": "There is no such model.",
    "408": "The body took too long.",
    "413": "The body is too large.",
    "415": "The body is compressed.",
    "429": "Too many requests; `Retry-After` says when to come again.",
    "500": "A fault of the gateway or of an engine.",
    "501": "The engine does not have this endpoint.",
    "502": "An engine was lost in the middle of its answer.",
    "503": "It cannot be served now.",
    "504": "There was no answer in time.",
}


def document(kinds: Mapping[type[GenerationRequest], str]) -> dict[str, Any]:
    """Return the document. kinds: the requests that are scheduled."""
    schemas: dict[str, Any] = {"Error": ERROR}
    paths: dict[str, Any] = {}
    for kind in kinds:
        schema = kind.model_json_schema(ref_template=SCHEMAS + "{model}")
        schemas |= schema.pop("$defs", {}) | {kind.__name__: schema}
        paths[kind.path] = {
            "post": {
                "operationId": kind.__name__.removesuffix("Request").lower(),
                "summary": (kind.__doc__ or "").partition("\n")[0],
                "requestBody": {"required": True, "content": _json({"$ref": SCHEMAS + kind.__name__})},
                "responses": _responses({"type": "object"}, is_streamed=True),
            }
        }
    for path, text in (("/v1/models", "The models that are served."), ("/v1/models/{name}", "One of them.")):
        paths[path] = {"get": {"summary": text, "responses": _responses({"type": "object"})}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{name}"]["parameters"] = [name]
    return {
        "openapi": "3.1.0",
        "info": {"title": "strata gateway", "version": "1"},
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }


def _responses(schema: Any, *, is_streamed: bool = False) -> dict[str, Any]:
    content = _json(schema) | ({"text/event-stream": {}} if is_streamed else {})
    refusals = {
        status: {"description": text, "content": _json({"$ref": SCHEMAS + "Error"})}
        for status, text in REFUSALS.items()
    }
    return {"200": {"description": "The answer.", "content": content}} | refusals


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
