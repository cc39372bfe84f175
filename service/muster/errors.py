"""The one tree of errors.

    MusterError
    ├── BadRequest            400  bad_request
    │   ├── ParameterError    400  parameter
    │   ├── SqlSyntax         400  sql_syntax
    │   ├── SqlForbidden      400  sql_forbidden
    │   └── SqlBind           400  sql_bind
    ├── Unauthorized          401  unauthorized
    ├── Forbidden             403  forbidden
    ├── NotFound              404  not_found
    │   ├── JobNotFound       404  job_not_found
    │   ├── NodeNotFound      404  node_not_found
    │   └── DiagnosisNotFound 404  diagnosis_not_found
    ├── Conflict              409  conflict
    ├── TooLarge              413  too_large
    ├── NotDistributable      422  not_distributable
    ├── StatementFailed       422  statement_failed
    ├── OverBudget            422  over_budget
    ├── Busy                  429  busy
    ├── Internal              500  internal
    ├── ShardFailed           502  shard_failed
    │   ├── ShardUnreachable  502  shard_unreachable
    │   └── ShardAnswerInvalid 502 shard_answer_invalid
    ├── NotReady              503  not_ready
    ├── DeadlineExceeded      504  deadline_exceeded
    └── ConfigError           500  config

`code` is stable: programs may switch on it. Every HTTP error body is `problem()`, as application/problem+json (RFC 9457).
"""

from __future__ import annotations

from typing import Any, ClassVar


class MusterError(Exception):
    """Base of all errors that Muster raises on purpose.

    `detail` says what is wrong with this request, `hint` how to put it right, `position` the (line, column), both
    from 1, in the text of the request; `extra` holds further members of the problem object.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(
        self, detail: str, *, hint: str | None = None, position: tuple[int, int] | None = None, **extra: Any
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        self.position = position
        self.extra = extra

    def problem(self) -> dict[str, Any]:
        """The RFC 9457 problem object: type, title, status, detail, code; hint and position where known."""
        body: dict[str, Any] = {
            "type": f"urn:muster:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.hint:
            body["hint"] = self.hint
        if self.position:
            body["position"] = {"line": self.position[0], "column": self.position[1]}
        return body | self.extra


class BadRequest(MusterError):
    status, code, title = 400, "bad_request", "Bad request"


class ParameterError(BadRequest):
    code, title = "parameter", "Malformed parameter"


class SqlSyntax(BadRequest):
    code, title = "sql_syntax", "The SQL text does not parse"


class SqlForbidden(BadRequest):
    code, title = "sql_forbidden", "The SQL uses something that is not allowed"


class SqlBind(BadRequest):
    code, title = "sql_bind", "The SQL does not fit the tables of the job"


class Unauthorized(MusterError):
    status, code, title = 401, "unauthorized", "A valid token is required"


class Forbidden(MusterError):
    status, code, title = 403, "forbidden", "The token does not allow this"


class NotFound(MusterError):
    status, code, title = 404, "not_found", "Not found"


class JobNotFound(NotFound):
    code, title = "job_not_found", "Unknown job"


class NodeNotFound(NotFound):
    code, title = "node_not_found", "Unknown node"


class DiagnosisNotFound(NotFound):
    code, title = "diagnosis_not_found", "Unknown diagnosis"


class Conflict(MusterError):
    status, code, title = 409, "conflict", "Conflict"


class TooLarge(MusterError):
    status, code, title = 413, "too_large", "The request is too large"


class NotDistributable(MusterError):
    status, code, title = 422, "not_distributable", "The query has no exact answer over many ranks"


class StatementFailed(MusterError):
    status, code, title = 422, "statement_failed", "The statement failed on the data"


class OverBudget(MusterError):
    status, code, title = 422, "over_budget", "The query needs more than its budget"


class Busy(MusterError):
    status, code, title = 429, "busy", "Too many requests at once"


class Internal(MusterError):
    pass


class ShardFailed(MusterError):
    status, code, title = 502, "shard_failed", "A probe failed"


class ShardUnreachable(ShardFailed):
    code, title = "shard_unreachable", "A probe could not be reached"


class ShardAnswerInvalid(ShardFailed):
    code, title = "shard_answer_invalid", "A probe gave an answer that cannot be used"


class NotReady(MusterError):
    status, code, title = 503, "not_ready", "Not ready"


class DeadlineExceeded(MusterError):
    status, code, title = 504, "deadline_exceeded", "The deadline passed"


class ConfigError(MusterError):
    code, title = "config", "The configuration is wrong"
