"""Tokens of service accounts, as TokenRequest gives them out and TokenReview tells whose they are.

As in Kubernetes: a token is good for its audiences and its time, and no longer than the pod that it is bound to; that
pod's node is among what a review tells (KEP-4193). Here they are random words, and no key to the stand-in itself.
"""

import datetime as dt
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hack.devnode.api import errors

Object = dict[str, Any]

API_AUDIENCE: Final = "https://kubernetes.default.svc"
_EXTRA: Final = "authentication.kubernetes.io"
_SHORTEST: Final = 600
"""Seconds (``minExpirationSeconds`` in pkg/apis/authentication/validation)."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token. ``pod`` is its namespace, name and UID where it is bound to one."""

    account: Object
    audiences: frozenset[str]
    expires_at: float
    credential: str
    pod: tuple[str, str, str] | None = None


class Tokens:
    """Gives tokens out, and tells about them. ``pod`` looks one up; ``clock`` gives Unix seconds."""

    def __init__(self, *, pod: Callable[[str, str], Object | None], clock: Callable[[], float]) -> None:
        self._pod = pod
        self._clock = clock
        self._tokens: dict[str, Token] = {}

    def request(self, account: Object, body: Object) -> Object:
        """Answer a TokenRequest for a service account. Raises ApiError."""
        spec = body.get("spec") or {}
        seconds = int(spec.get("expirationSeconds") or 3600)
        if seconds < _SHORTEST:
            why = f"spec.expirationSeconds: Invalid value: {seconds}: may not specify a duration less than 10 minutes"
            raise errors.invalid("TokenRequest.authentication.k8s.io", "", why)
        text, expires_at = secrets.token_urlsafe(24), self._clock() + seconds
        self._tokens[text] = Token(
            account=account,
            audiences=frozenset(spec.get("audiences") or [API_AUDIENCE]),
            expires_at=expires_at,
            credential=f"JTI={uuid.uuid4()}",
            pod=self._bound(account, spec.get("boundObjectRef")),
        )
        expires = dt.datetime.fromtimestamp(int(expires_at), tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": account["metadata"]["name"], "namespace": account["metadata"]["namespace"]},
            "spec": {**spec, "expirationSeconds": seconds, "audiences": spec.get("audiences") or [API_AUDIENCE]},
            "status": {"token": text, "expirationTimestamp": expires},
        }

    def review(self, body: Object) -> Object:
        """Answer a TokenReview."""
        spec = body.get("spec") or {}
        if not spec.get("token"):
            raise errors.bad_request("token is required for TokenReview in authentication")
        return {
            "kind": "TokenReview",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {},
            "spec": spec,
            "status": self._status(spec["token"], spec.get("audiences") or [API_AUDIENCE]),
        }

    def _bound(self, account: Object, reference: Mapping[str, Any] | None) -> tuple[str, str, str] | None:
        if reference is None:
            return None
        if reference.get("kind") != "Pod":
            raise errors.cannot(f"tokens bound to a {reference.get('kind')}", "only pods can be looked up")
        namespace, name = account["metadata"]["namespace"], str(reference.get("name", ""))
        pod = self._pod(namespace, name)
        if pod is None:
            raise errors.not_found("pods", name)
        uid = pod["metadata"]["uid"]
        if reference.get("uid") not in (None, "", uid):
            raise errors.conflict(
                "serviceaccounts", name, f"the UID in the bound object reference ({reference['uid']})"
            )
        if pod["spec"].get("serviceAccountName") != account["metadata"]["name"]:
            raise errors.bad_request(
                "cannot bind token for serviceaccount to pod running with different serviceaccount"
            )
        return namespace, name, uid

    def _status(self, text: str, audiences: Sequence[str]) -> Object:
        token = self._tokens.get(text)
        if token is None or token.expires_at <= self._clock():
            return {"user": {}, "error": "invalid bearer token"}
        if not (good := sorted(token.audiences & set(audiences))):
            why = f"token audiences {sorted(token.audiences)} is invalid for the target audiences {list(audiences)}"
            return {"user": {}, "error": f"[invalid bearer token, {why}]"}
        extra = {f"{_EXTRA}/credential-id": [token.credential]}
        if token.pod is not None:
            namespace, name, uid = token.pod
            pod = self._pod(namespace, name)
            if pod is None or pod["metadata"]["uid"] != uid:
                return {"user": {}, "error": "[invalid bearer token, service account token has been invalidated]"}
            extra |= {f"{_EXTRA}/pod-name": [name], f"{_EXTRA}/pod-uid": [uid]}
            if pod["spec"].get("nodeName"):
                extra[f"{_EXTRA}/node-name"] = [pod["spec"]["nodeName"]]
        return {"authenticated": True, "user": _user(token.account, extra), "audiences": good}


def _user(account: Object, extra: Object) -> Object:
    namespace, name = account["metadata"]["namespace"], account["metadata"]["name"]
    return {
        "username": f"system:serviceaccount:{namespace}:{name}",
        "uid": account["metadata"]["uid"],
        "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
        "extra": extra,
    }
