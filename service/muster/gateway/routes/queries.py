"""The catalogue of diagnoses."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request

from muster.gateway import requests
from muster.gateway.routes.context import may_read_any, parts_of
from muster.gateway.shapes import PROBLEMS

router = APIRouter(prefix="/queries", tags=["queries"], dependencies=[Depends(may_read_any)], responses=PROBLEMS)
_BRIEF = ("id", "asks", "parameters", "requires", "related")


@router.get("", summary="All diagnoses: what each asks, and its parameters.")
async def get_queries(request: Request) -> list[dict[str, Any]]:
    requests.only(request, ())
    found = [loaded.diagnosis.model_dump(mode="json") for loaded in parts_of(request).catalogue]
    return [{k: d[k] for k in _BRIEF if k in d} for d in found]


@router.get("/{id}", summary="One diagnosis as it is defined: parameters, steps and findings with their SQL.")
async def get_query(request: Request, id: str) -> dict[str, Any]:
    requests.only(request, ())
    return parts_of(request).catalogue.get(id).diagnosis.model_dump(mode="json")
