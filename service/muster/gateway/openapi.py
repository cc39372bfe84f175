"""The OpenAPI document of the gateway, as it is checked in."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from muster.gateway.app import create_app
from muster.gateway.settings import GatewaySettings

_OPEN = frozenset({"/livez", "/readyz"})


def document(app: FastAPI | None = None) -> dict[str, Any]:
    """The document of an app, by default of one with default settings. Tokens are a security scheme."""
    made = app or create_app(GatewaySettings(state=None))
    found: dict[str, Any] = made.openapi()
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
