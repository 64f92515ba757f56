"""How the API says no: an HTTP status, a reason, and a message in the real server's words."""

from typing import Any


class ApiError(Exception):
    """A request that the API refuses. ``retry_after`` is in seconds."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """Return the ``Status`` object that clients get."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }


def bad_request(message: str) -> ApiError:
    """The request makes no sense."""
    return ApiError(400, "BadRequest", message)


def not_found(resource: str, name: str) -> ApiError:
    """There is no such object."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found')


def exists(resource: str, name: str) -> ApiError:
    """There is one of this name already."""
    return ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists')


def conflict(resource: str, name: str, why: str) -> ApiError:
    """A precondition did not hold."""
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def invalid(kind: str, name: str, why: str) -> ApiError:
    """The object breaks a rule."""
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {why}')


def expired(asked: int, oldest: int) -> ApiError:
    """The resource version is older than what is remembered."""
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def cannot(what: str, why: str) -> ApiError:
    """The stand-in cannot do this as the real server would, and says so rather than pretend."""
    return ApiError(501, "NotImplemented", f"the API stand-in does not do {what}: {why}; use a real kube-apiserver")
