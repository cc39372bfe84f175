"""The checked-in OpenAPI documents are those of the code, valid, and cover every route."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from fastapi.routing import APIRoute
from openapi_spec_validator import validate
from starlette.routing import Route

from muster.cli.openapi import documents, text
from muster.gateway.routes import health, history, jobs, meta, queries, sql
from muster.probe.agent.app import AgentApp

CHECKED_IN = Path(__file__).parent.parent / "openapi"


@pytest.mark.parametrize("name", ["gateway.yaml", "probe.yaml"])
def test_the_checked_in_document_is_that_of_the_code(name: str) -> None:
    assert (CHECKED_IN / name).read_text(encoding="utf-8") == text(documents()[name]), "run `make openapi`"


@pytest.mark.parametrize("name", ["gateway.yaml", "probe.yaml"])
def test_the_document_is_valid_openapi(name: str) -> None:
    validate(yaml.safe_load((CHECKED_IN / name).read_text(encoding="utf-8")))


def test_every_route_of_the_gateway_is_in_its_document() -> None:
    documented = yaml.safe_load((CHECKED_IN / "gateway.yaml").read_text(encoding="utf-8"))["paths"]
    routes = [r for module in (health, history, jobs, meta, queries, sql) for r in module.router.routes]
    served = {(r.path, m.lower()) for r in routes if isinstance(r, APIRoute) for m in r.methods}
    assert len(served) == len(routes)
    assert served == {(path, method) for path, operations in documented.items() for method in operations}


def test_every_route_of_the_agent_is_in_its_document() -> None:
    documented = yaml.safe_load((CHECKED_IN / "probe.yaml").read_text(encoding="utf-8"))["paths"]
    app = AgentApp(None, None).build()  # type: ignore[arg-type]
    served = {(r.path, m.lower()) for r in app.routes if isinstance(r, Route) for m in r.methods or () if m != "HEAD"}
    assert served == {(path, method) for path, operations in documented.items() for method in operations}
