"""The OpenAPI document of the agent, written from the shapes of `muster.protocol`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from muster import __version__
from muster.protocol import ARROW_STREAM, NodeInfo, QueryRequest

_REF = "#/components/schemas/{model}"


class Problem(BaseModel):
    """An error (RFC 9457). `code` is stable."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str | None = None


def document() -> dict[str, Any]:
    """OpenAPI 3.1 of the routes of `app`."""
    models = (NodeInfo, QueryRequest, Problem)
    _, schemas = models_json_schema([(m, "validation") for m in models], by_alias=True, ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Muster agent",
            "version": __version__,
            "summary": "Serves what the recorders of one job on one node have written.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/v1/node": {
                "get": _operation(
                    "get_node", "Node, ranks, tables, engine.", {"application/json": {"schema": _ref("NodeInfo")}}
                )
            },
            "/v1/query": {
                "post": _operation(
                    "post_query",
                    "The subqueries of one wave; one Arrow IPC stream for each, back to back, in their order. The schema"
                    " metadata of a stream holds id, rows, batches, as_of, elapsed_ms, ranks (those that it speaks"
                    " for), missing (JSON list of ranks and generations that were asked for and are not here), oldest_step,"
                    " rows_lost, notes (JSON list of texts: what was left out of the tables read); or error, a problem"
                    " object, in a stream without columns.",
                    {ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}}},
                )
                | {
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": _ref("QueryRequest")}},
                    }
                }
            },
            "/livez": {"get": _operation("get_livez", "The process answers.", {"text/plain": {}}) | {"security": []}},
            "/metrics": {"get": _operation("get_metrics", "Metrics for Prometheus.", {"text/plain": {}})},
        },
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "Needed where serve_token is set."}
            },
        },
    }


def _operation(id: str, summary: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": id,
        "summary": summary,
        "security": [{"token": []}, {}],
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {
                "description": "An error.",
                "content": {"application/problem+json": {"schema": _ref("Problem")}},
            },
        },
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
