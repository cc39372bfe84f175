"""The OpenAPI document of the gateway, as it is served and checked in: tokens are a security scheme."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

_OPEN = frozenset({"/livez", "/readyz"})


class DocumentedApp(FastAPI):
    """An app whose document says which operations need a token."""

    def openapi(self) -> dict[str, Any]:
        """The document; made once."""
        if self.openapi_schema is None:
            self.openapi_schema = _with_tokens(super().openapi())
        return self.openapi_schema


def _with_tokens(found: dict[str, Any]) -> dict[str, Any]:
    found["components"]["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "Needed where the gateway listens on anything but loopback. Scopes: read, query, register.",
        }
    }
    for path, operations in found["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in _OPEN else [{"token": []}, {}]
    return found
