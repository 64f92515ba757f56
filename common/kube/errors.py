"""What can go wrong between us and the API server, in words for people.

::

    KubeError
    ├── ApiUnavailableError    no answer, or an answer that says "later" (429, 5xx)
    │   └── NotConfiguredError no usable kubeconfig or service account
    ├── UnauthorizedError      401: who we are was not accepted
    ├── ForbiddenError         403: RBAC lacks a rule, or admission (a quota, a policy) refuses it
    ├── NotFoundError          404
    ├── ConflictError          409: another writer was first, or the object is a new one of the same name
    │   └── AlreadyExistsError what was to be created is there, or something else of its name
    ├── GoneError              410: the resource version is too old; list again
    └── InvalidError           400, 405, 415, 422, 501: the server will not take this request as it is
"""

import http
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from common.kube import paths


class KubeError(Exception):
    """A request to the API server failed. The text says in one line what, where, and the mend.

    ``status`` is the HTTP status (None when there was no answer), ``reason`` the server's ``Status.reason``, ``said``
    what it said in its own words (else the text's first part), ``mend`` what a person can do about it, ``retry_after``
    the seconds that the server asked us to wait.
    """

    def __init__(
        self,
        what: str,
        *,
        mend: str = "",
        status: int | None = None,
        reason: str = "",
        said: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{what}: {mend}" if mend else what)
        self.what = what
        self.said = said or what
        self.mend = mend
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
    """The credentials are good, but RBAC does not allow this, or what admits requests refuses it."""


class NotFoundError(KubeError):
    """There is no such object, or no such resource."""


class ConflictError(KubeError):
    """A precondition (resource version, UID) did not hold, or the object exists already."""


class AlreadyExistsError(ConflictError):
    """There is an object of this name. A creation meets other conflicts too, such as a quota that many ask for."""


class GoneError(KubeError):
    """The resource version is older than what the server remembers: list again."""


class InvalidError(KubeError):
    """The server understood the request and refuses it; trying again cannot help."""


def from_response(
    target: paths.Target, *, server: str, status: int, body: str, retry_after: str | None = None
) -> KubeError:
    """Return the error for an HTTP answer that is not a success; ``body`` is its text, a ``Status`` or not."""
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
    """Return the error for a ``Status`` object, be it an answer's body or a watch's ERROR event."""
    reason = str(answer.get("reason") or "")
    kind = _kind(status, reason)
    said = str(answer.get("message") or _phrase(status))
    return kind(
        f"cannot {target} at {server}: {said}",
        mend=_mend(kind, target, said=said),
        status=status,
        reason=reason,
        said=said,
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

NAMESPACE_GOES: Final = "because it is being terminated"
"""In what the admission plugin NamespaceLifecycle says of a namespace that takes nothing new any more."""

_AUTHORIZER: Final = re.compile(r'\bforbidden: User "[^"]*" cannot ')
"""What refuses by RBAC says so (``forbiddenMessage`` of apiserver's responsewriters); nothing that admits does."""

_ADMISSION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ValidatingAdmissionPolicy": "the policy that it names refuses this; its binding says where it applies",
        "exceeded quota": "raise the namespace's ResourceQuota, or free some of what it counts",
        NAMESPACE_GOES: "the namespace is being deleted; nothing new is taken there",
    }
)
"""Mends of refusals by what admits requests, by what is found in their messages."""

_OTHER_ADMISSION: Final = "an admission plugin or webhook refuses this, RBAC does not"

_BY_STATUS: dict[int, type[KubeError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
}


def _mend(kind: type[KubeError], target: paths.Target, *, said: str) -> str:
    if kind is ForbiddenError and _AUTHORIZER.search(said):
        return f'allow verb "{target.verb}" on resource "{target.rbac_resource}" in the role of this service account'
    if kind is ForbiddenError:
        return next((mend for words, mend in _ADMISSION.items() if words in said), _OTHER_ADMISSION)
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
    return float(retry_after) if retry_after is not None and retry_after.isdigit() else None
