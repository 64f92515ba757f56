"""Read a pod's spec once from the API's JSON into typed values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Container:
    """Describe one container of the spec. ``raw`` is its JSON."""

    name: str
    image: str
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read one item of ``spec.containers``."""
        return cls(name=raw["name"], image=raw["image"], raw=raw)

    def hook(self, kind: str) -> Json | None:
        """Return ``lifecycle.postStart`` or ``lifecycle.preStop`` as given, or None."""
        return (self.raw.get("lifecycle") or {}).get(kind)


@dataclass(frozen=True, slots=True)
class Pod:
    """Describe a pod object of the API. ``raw`` is its JSON."""

    namespace: str
    name: str
    uid: str
    mains: tuple[Container, ...]
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read a pod object."""
        metadata = raw["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            mains=tuple(Container.parse(item) for item in raw["spec"]["containers"]),
            raw=raw,
        )

    @property
    def spec(self) -> Json:
        """Return ``spec`` as the API gave it."""
        spec: Json = self.raw["spec"]
        return spec

    @property
    def host_network(self) -> bool:
        """Return whether the pod lives in the node's network."""
        return bool(self.spec.get("hostNetwork"))
