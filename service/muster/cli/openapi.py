"""`python -m muster.cli.openapi DIR`: write openapi/*.yaml from the code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml


def documents() -> dict[str, dict[str, Any]]:
    """The documents by file name."""
    from muster.gateway.app import create_app
    from muster.gateway.settings import GatewaySettings
    from muster.probe.agent.openapi import document as probe_document

    return {"gateway.yaml": create_app(GatewaySettings(state=None)).openapi(), "probe.yaml": probe_document()}


def text(document: dict[str, Any]) -> str:
    """A document as it is checked in."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def write(directory: Path) -> list[Path]:
    """Write all documents; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, document in documents().items():
        path = directory / name
        path.write_text(text(document), encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    for found in write(Path(sys.argv[1] if len(sys.argv) > 1 else "openapi")):
        print(found)
