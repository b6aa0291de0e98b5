"""What a client is told when something cannot be done, in OpenAI's error shape."""

from collections.abc import Mapping
from typing import Any, Final

from outrider.errors import RequestError, RequestFailed

INTERNAL: Final = 500
LONGEST_MESSAGE: Final = 1000
"""Characters; whoever sends megabytes of nonsense does not get them back."""
STATUS_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    """An answer that is an error: HTTP status, sentence, and which field is to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Describe it; the error's type follows from the status."""
        super().__init__(message)
        self.status = status
        self.message = _short(message, LONGEST_MESSAGE)
        self.param = None if param is None else _short(param, LONGEST_MESSAGE // 10)
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Give it as OpenAI's clients read it."""
        kind = STATUS_TYPES.get(self.status, "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} …"


class TimeLimitExceeded(RequestError):
    """The request took longer than the server allows."""


class ServerStopping(RequestError):
    """The server is going down and the request was not done in time."""


class Cancelled(RequestError):
    """The client went away."""


class Overloaded(RequestError):
    """The queue is full; `retry_after` says in how many seconds there may be room."""

    def __init__(self, message: str, retry_after: int) -> None:
        """Say when to try again."""
        super().__init__(message)
        self.retry_after = retry_after


# The official client repeats 408 and 5xx unless it is told not to.
_NO_RETRY = {"x-should-retry": "false"}
_KINDS: tuple[tuple[type[RequestError], int, str], ...] = (
    (ServerStopping, 503, "shutting_down"),
    (TimeLimitExceeded, 408, "time_limit"),
    (Cancelled, 408, "cancelled"),
    (RequestFailed, INTERNAL, "request_failed"),
)


def api_error_of(error: Exception) -> ApiError:
    """Translate what went wrong with one request."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Overloaded):
        headers = {"retry-after": str(error.retry_after)}
        return ApiError(429, str(error), code="queue_full", headers=headers)
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            return ApiError(status, str(error), code=code, headers=_NO_RETRY)
    if isinstance(error, RequestError):
        return ApiError(400, str(error))
    return ApiError(INTERNAL, "internal error", code="internal_error", headers=_NO_RETRY)
