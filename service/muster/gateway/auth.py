"""Who may do what: bearer tokens with scopes, bound to jobs where wanted. Without tokens (loopback only) all may do all."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import get_args

from fastapi import Request

from muster.errors import Forbidden, Unauthorized
from muster.gateway.settings import Scope, TokenSetting


class Auth:
    """Checks the Authorization header of a request."""

    def __init__(self, tokens: Sequence[TokenSetting]) -> None:
        self._tokens = tuple(tokens)

    def check(self, request: Request, scope: Scope, job: str | None = None) -> str | None:
        """Name of the token that allows `scope` (on `job`); None where none are set. Raises Unauthorized, Forbidden."""
        if not self._tokens:
            return None
        secret = _secret(request)
        if not secret:
            raise Unauthorized("This gateway needs a token.", hint="Send Authorization: Bearer <token>.")
        token = self._find(secret)
        if token is None:
            raise Unauthorized("The token is not known here.", hint="Ask whoever runs the gateway for one.")
        if scope not in token.scopes:
            raise Forbidden(f"The token {token.name} does not have the scope {scope}.", hint="Use one that does.")
        if token.jobs is not None and job not in token.jobs:
            raise Forbidden(f"The token {token.name} is bound to other jobs.", hint="Use one for this job.")
        return token.name

    def check_any(self, request: Request, scope: Scope) -> None:
        """As `check`, for what belongs to no job: a token bound to jobs will do. Raises Unauthorized, Forbidden."""
        if not self._tokens:
            return
        token = self._find(_secret(request))
        if token is None:
            raise Unauthorized("This gateway needs a token.", hint="Send Authorization: Bearer <token>.")
        if scope not in token.scopes:
            raise Forbidden(f"The token {token.name} does not have the scope {scope}.", hint="Use one that does.")

    def name(self, request: Request) -> str | None:
        """Name of the token of a request, for logs."""
        token = self._find(_secret(request)) if self._tokens else None
        return token.name if token is not None else None

    def visible(self, request: Request, jobs: Sequence[str]) -> set[str]:
        """Those of `jobs` that the token of a request may see."""
        if not self._tokens:
            return set(jobs)
        token = self._find(_secret(request))
        bound = token.jobs if token is not None else frozenset()
        return set(jobs) if bound is None else set(jobs) & bound

    def _find(self, secret: str) -> TokenSetting | None:
        """Compares with every token, so that the time taken tells nothing."""
        digest = digest_of(secret)
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return found


def _secret(request: Request) -> str:
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def digest_of(secret: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_token() -> str:
    """A fresh secret of 256 bits."""
    return "mst_" + secrets.token_urlsafe(32)


SCOPES: tuple[str, ...] = get_args(Scope)
