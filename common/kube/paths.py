"""Build request paths of the API, and describe a path for people. Pure."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

PODS: Final = "/api/v1/pods"
NODES: Final = "/api/v1/nodes"
TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path

_LONGEST_NAME: Final = 253  # DNS1123SubdomainMaxLength
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def collection(resource: str, *, namespace: str | None = None, group: str = "", version: str = "v1") -> str:
    """Return the path of a collection, such as ``/apis/batch/v1/namespaces/x/jobs``; group "" is the core group."""
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    return f"{root}/namespaces/{quote(namespace, safe='')}/{resource}" if namespace else f"{root}/{resource}"


def one(resource: str, name: str, *, namespace: str | None = None, group: str = "", version: str = "v1") -> str:
    """Return the path of one object by an untrusted name, such as one from an ownerReference.

    Raises ValueError for a name that no object can have (``IsValidPathSegmentName`` of apimachinery). Quoting alone is
    not sufficient: a quoted ``..`` leads out of the collection, too.
    """
    if name in ("", ".", "..") or "/" in name or "%" in name or len(name) > _LONGEST_NAME:
        raise ValueError(f"{name[:_LONGEST_NAME]!r} is not the name of an object")
    return f"{collection(resource, namespace=namespace, group=group, version=version)}/{quote(name, safe='')}"


def pod(namespace: str, name: str) -> str:
    """Return the path of one pod."""
    return f"{collection('pods', namespace=namespace)}/{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class Target:
    """Describe the subject of a request in RBAC's terms. Empty strings: not in the path."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def rbac_resource(self) -> str:
        """Return the resource as a Role writes it, such as ``pods/status`` or ``jobs.batch``."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{resource}/{self.subresource}" if self.subresource else resource

    def __str__(self) -> str:
        where = "/".join(part for part in (self.namespace, self.name) if part)
        if self.namespace and not self.name:
            where = f"in namespace {where}"
        return " ".join(part for part in (self.verb, self.rbac_resource, where) if part)


def describe(method: str, path: str, *, watch: bool = False) -> Target:
    """Return the meaning of a request. Paths outside of ``/api`` and ``/apis`` are their own name."""
    match path.strip("/").split("/"):
        case ["api", _, *rest]:
            group = ""
        case ["apis", group, _, *rest]:
            pass
        case _:
            return Target(verb=method.lower(), resource=path)
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        _, namespace, *rest = rest
    resource, name, subresource = (*rest, "", "", "")[:3]
    return Target(
        verb=_verb(method, named=bool(name), watch=watch),
        resource=resource,
        group=group,
        namespace=namespace,
        name=name,
        subresource=subresource,
    )


def _verb(method: str, *, named: bool, watch: bool) -> str:
    if watch:
        return "watch"
    if method == "GET":
        return "get" if named else "list"
    return _VERBS.get(method, method.lower())
