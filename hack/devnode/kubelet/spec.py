"""What a pod's spec asks for, read once from the API's JSON into typed values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from agent.model.workloads import ContainerRole, RestartPolicy

Json = dict[str, Any]

RESTART_ALL = "RestartAllContainers"
"""The action of KEP-5532; the other one is ``Restart`` (KEP-5307)."""


@dataclass(frozen=True, slots=True)
class RestartRule:
    """One item of ``restartPolicyRules``; kubelet knows exit codes as the only condition."""

    action: str
    operator: str
    values: frozenset[int]

    def matches(self, exit_code: int) -> bool:
        """Whether the rule is about this exit code. An unknown operator matches nothing."""
        if self.operator == "In":
            return exit_code in self.values
        return self.operator == "NotIn" and exit_code not in self.values


@dataclass(frozen=True, slots=True)
class Container:
    """One container of the spec. ``raw`` is its JSON, for what only the runtime's config needs."""

    name: str
    image: str
    role: ContainerRole
    restart_policy: RestartPolicy | None = None
    rules: tuple[RestartRule, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parse(cls, raw: Json, *, init: bool) -> Self:
        """Read one item of ``spec.containers`` or ``spec.initContainers``."""
        policy = RestartPolicy(raw["restartPolicy"]) if raw.get("restartPolicy") else None
        if not init:
            role = ContainerRole.MAIN
        else:
            role = ContainerRole.SIDECAR if policy is RestartPolicy.ALWAYS else ContainerRole.INIT
        return cls(
            name=raw["name"],
            image=raw["image"],
            role=role,
            restart_policy=policy,
            rules=tuple(_parse_rule(rule) for rule in raw.get("restartPolicyRules") or ()),
            raw=raw,
        )

    def rule_for(self, exit_code: int) -> RestartRule | None:
        """Return the first rule that matches (kubelet evaluates them in order)."""
        return next((rule for rule in self.rules if rule.matches(exit_code)), None)

    def probe(self, kind: str) -> Json | None:
        """Return ``startupProbe``, ``readinessProbe`` or ``livenessProbe`` as given, or None."""
        return self.raw.get(kind)

    def hook(self, kind: str) -> Json | None:
        """Return ``lifecycle.postStart`` or ``lifecycle.preStop`` as given, or None."""
        return (self.raw.get("lifecycle") or {}).get(kind)


def _parse_rule(raw: Json) -> RestartRule:
    codes = raw.get("exitCodes") or {}
    return RestartRule(
        action=raw.get("action", ""),
        operator=codes.get("operator", ""),
        values=frozenset(codes.get("values") or ()),
    )


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the API last told it. ``inits`` holds init containers and sidecars in their order."""

    namespace: str
    name: str
    uid: str
    restart_policy: RestartPolicy
    inits: tuple[Container, ...]
    mains: tuple[Container, ...]
    deleting: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read a pod object of the API."""
        metadata, spec = raw["metadata"], raw["spec"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            restart_policy=RestartPolicy(spec.get("restartPolicy", "Always")),
            inits=tuple(Container.parse(item, init=True) for item in spec.get("initContainers") or ()),
            mains=tuple(Container.parse(item, init=False) for item in spec["containers"]),
            deleting="deletionTimestamp" in metadata,
            raw=raw,
        )

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def spec(self) -> Json:
        """``spec`` as the API gave it."""
        spec: Json = self.raw["spec"]
        return spec

    @property
    def status(self) -> Json:
        """``status`` as the API gave it (empty while nobody has written one)."""
        return self.raw.get("status") or {}

    @property
    def host_network(self) -> bool:
        """Whether the pod lives in the node's network."""
        return bool(self.spec.get("hostNetwork"))

    @property
    def grace_seconds(self) -> int:
        """Seconds that a container gets between SIGTERM and SIGKILL; a deletion's own grace comes first."""
        deletion = self.raw["metadata"].get("deletionGracePeriodSeconds")
        if self.deleting and deletion is not None:
            return int(deletion)
        return int(self.spec.get("terminationGracePeriodSeconds", 30))

    def containers(self) -> Iterator[Container]:
        """All containers, init containers first."""
        yield from self.inits
        yield from self.mains

    def container(self, name: str) -> Container | None:
        """Return the container of that name, or None."""
        return next((item for item in self.containers() if item.name == name), None)
