"""The resources that the stand-in knows: Kubernetes' own (kmock's catalogue of them) and those that CRDs add."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import kmock

CRDS: Final = ("apiextensions.k8s.io", "customresourcedefinitions")
_ANYTHING: Final = {"x-kubernetes-preserve-unknown-fields": True}
"""The schema of a definition that has none; a real server refuses such a one."""
_STORED: Final = frozenset({"create", "get", "list"})


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the API. ``custom``: defined by a CRD, so its objects are plain JSON, of this ``schema``."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    has_status: bool
    custom: bool = False
    schema: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Its name in messages, such as ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Registry:
    """Finds resources by group, version and plural. kmock's discovery serves the same catalogue."""

    def __init__(self, catalogue: kmock.ResourcesArray) -> None:
        self._catalogue = catalogue
        self._resources: dict[tuple[str, str, str], Resource] = {}
        for key, info in catalogue.items():
            if info.verbs >= _STORED:
                self._add(
                    Resource(
                        group=key.group,
                        version=key.version,
                        plural=key.plural,
                        kind=info.kind,
                        namespaced=bool(info.namespaced),
                        has_status="status" in info.subresources,
                    )
                )

    def find(self, *, group: str, version: str, plural: str) -> Resource | None:
        """Return the resource, or None."""
        return self._resources.get((group, version, plural))

    def define(self, crd: dict[str, Any]) -> None:
        """Add what a CustomResourceDefinition defines."""
        for resource in _defined_by(crd):
            self._add(resource)
            self._catalogue[f"{resource.group}/{resource.version}/{resource.plural}"] = kmock.ResourceInfo(
                kind=resource.kind,
                singular=resource.kind.lower(),
                namespaced=resource.namespaced,
                verbs={"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
                subresources={"status"} if resource.has_status else set(),
            )

    def _add(self, resource: Resource) -> None:
        self._resources[resource.group, resource.version, resource.plural] = resource


def _defined_by(crd: dict[str, Any]) -> Iterator[Resource]:
    spec = crd["spec"]
    for version in spec["versions"]:
        if version.get("served"):
            yield Resource(
                group=spec["group"],
                version=version["name"],
                plural=spec["names"]["plural"],
                kind=spec["names"]["kind"],
                namespaced=spec.get("scope") == "Namespaced",
                has_status="status" in version.get("subresources", {}),
                custom=True,
                schema=(version.get("schema") or {}).get("openAPIV3Schema") or _ANYTHING,
            )
