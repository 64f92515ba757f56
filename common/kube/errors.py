"""Turn failures of the API server into typed errors with texts for people.

::

    KubeError
    ├── ApiUnavailableError    no answer, or an answer that means "later" (429, 5xx)
    │   └── NotConfiguredError no usable kubeconfig or service account
    ├── UnauthorizedError      401: the credentials were not accepted
    ├── ForbiddenError         403: RBAC lacks a rule, or admission (a quota, a policy) refuses it
    ├── NotFoundError          404
    ├── ConflictError          409: another writer was first, or the object is a new one of the same name
    │   └── AlreadyExistsError the object to be created exists, or another of its name
    ├── GoneError              410: the resource version is too old; list again
    └── InvalidError           400, 405, 415, 422, 501: the server will not accept this request as it is
"""

import http
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kubemend.common.kube import paths


class KubeError(Exception):
    """A request to the API server failed. The text has in one line the request, the server, the reason and the hint.

    - ``status`` is the HTTP status; None when there was no answer
    - ``reason`` is the server's ``Status.reason``
    - ``server_message`` is the server's message, else the text's first part
    - ``hint`` is advice to a person
    - ``retry_after``: the seconds that the server asked the client to wait
    """

    def __init__(
        self,
        what: str,
        *,
        hint: str = "",
        status: int | None = None,
        reason: str = "",
        server_message: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{what}: {hint}" if hint else what)
        self.what = what
        self.server_message = server_message or what
        self.hint = hint
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class ApiUnavailableError(KubeError):
    """The API server did not answer in time, cannot be reached, or is too busy."""


class NotConfiguredError(ApiUnavailableError):
    """There is no kubeconfig and no service account, or they cannot be used."""


class UnauthorizedError(KubeError):
    """The credentials were not accepted."""


class ForbiddenError(KubeError):
    """The credentials are valid, but RBAC or admission refuses the request."""

    @property
    def is_by_admission(self) -> bool:
        """Return whether admission refuses this request only, such as by a quota of its namespace."""
        return _AUTHORIZER.search(self.server_message) is None


class NotFoundError(KubeError):
    """There is no such object, or no such resource."""


class ConflictError(KubeError):
    """A precondition (resource version, UID) did not hold, or the object already exists."""


class AlreadyExistsError(ConflictError):
    """An object of this name exists. Creations meet other conflicts too, such as a contended quota."""


class GoneError(KubeError):
    """The resource version is older than the server's history: list again."""


class InvalidError(KubeError):
    """The server understood the request and refuses it; a retry cannot help."""


def from_response(
    target: paths.Target, *, server: str, status: int, body: str, retry_after: str | None = None
) -> KubeError:
    """Return the error for an unsuccessful HTTP answer; ``body`` is its text, a ``Status`` or not."""
    answer = _parse_status(body)
    return from_status(target, server=server, status=status, answer=answer, retry_after=_seconds(retry_after))


def from_status(
    target: paths.Target,
    *,
    server: str,
    status: int,
    answer: dict[str, Any],
    retry_after: float | None = None,
) -> KubeError:
    """Return the error for a ``Status`` object: an answer's body or a watch's ERROR event."""
    reason = str(answer.get("reason") or "")
    kind = _kind(status, reason)
    server_message = str(answer.get("message") or _phrase(status))
    return kind(
        f"cannot {target} at {server}: {server_message}",
        hint=_hint(kind, target, server_message=server_message),
        status=status,
        reason=reason,
        server_message=server_message,
        retry_after=retry_after,
    )


def _kind(status: int, reason: str) -> type[KubeError]:
    if status == http.HTTPStatus.CONFLICT and reason == _ALREADY_EXISTS:
        return AlreadyExistsError
    if status == http.HTTPStatus.NOT_IMPLEMENTED:
        return InvalidError
    if status == http.HTTPStatus.TOO_MANY_REQUESTS or status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        return ApiUnavailableError
    return _BY_STATUS.get(status, InvalidError)


_ALREADY_EXISTS: Final = "AlreadyExists"
"""``Status.reason`` (``StatusReasonAlreadyExists`` of metav1)."""

_NAMESPACE_GOES: Final = "because it is being terminated"
"""Part of the message of the admission plugin NamespaceLifecycle for a namespace that accepts nothing new."""

_AUTHORIZER: Final = re.compile(r'\bforbidden: User "[^"]*" cannot ')
"""RBAC refusals have this text (``forbiddenMessage`` of apiserver's responsewriters); admission refusals do not."""

_ADMISSION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ValidatingAdmissionPolicy": "the policy in the message refuses this; its binding defines where it applies",
        "exceeded quota": "raise the namespace's ResourceQuota, or free some of what it counts",
        _NAMESPACE_GOES: "the namespace is being deleted and accepts no new objects",
    }
)
"""Hints for refusals by admission, by the text found in their messages."""

_OTHER_ADMISSION: Final = "an admission plugin or webhook refuses this; RBAC allows it"

_BY_STATUS: dict[int, type[KubeError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
}


def _hint(kind: type[KubeError], target: paths.Target, *, server_message: str) -> str:
    if kind is ForbiddenError and _AUTHORIZER.search(server_message):
        return f'allow verb "{target.verb}" on resource "{target.rbac_resource}" in the role of this service account'
    if kind is ForbiddenError:
        return next((hint for part, hint in _ADMISSION.items() if part in server_message), _OTHER_ADMISSION)
    if kind is UnauthorizedError:
        return "check the token or client certificate (service account, kubeconfig)"
    return ""


def _parse_status(body: str) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {"message": body.strip().partition("\n")[0][:200]}
    return answer if isinstance(answer, dict) else {}


def _phrase(status: int) -> str:
    try:
        return f"{status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _seconds(retry_after: str | None) -> float | None:
    """Parse ``Retry-After`` in its seconds form, the only one that the API server sends."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
