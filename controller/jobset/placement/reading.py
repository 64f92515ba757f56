"""Convert pods and nodes of the API to what placement needs. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

from kubemend.common import gangs
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import exclusive
from kubemend.controller.jobset.placement.model import Needs, Node, Pod, Requirement, Taint, Toleration
from kubemend.controller.jobset.spec import quantities
from kubemend.controller.jobset.spec.model import Json

_OVER: Final = frozenset({"Succeeded", "Failed"})
_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
_PODS: Final = "pods"
"""The resource of which each pod takes one."""


def pod(obj: Json) -> Pod | None:
    """Return a pod of a JobSet's Job; None for any other. Raises KeyError, TypeError, ValueError, AttributeError.

    Its Job's key is computed, not read: a label can claim any Job, even one of another namespace.
    """
    meta, spec = obj["metadata"], obj.get("spec") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    job = labels.get(gangs.JOB_NAME)
    if not job or naming.JOB_KEY not in labels:
        return None
    gates = tuple(each["name"] for each in spec.get("schedulingGates") or ())
    return Pod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        job=naming.job_key(meta["namespace"], job),
        topology=exclusive.topology(annotations),  # upstream's exclusive pods occupy their domain like kubemend's
        node=spec.get("nodeName") or "",
        gates=gates,
        over=(obj.get("status") or {}).get("phase") in _OVER,
        deleting=bool(meta.get("deletionTimestamp")),
        needs=_needs(spec) if exclusive.GATE in gates else Needs(selector=_selector(spec)),
        resource_version=meta.get("resourceVersion", ""),
    )


def bare(pod: Pod) -> Pod:
    """Return the reduced form of a pod that is too large: its domain. The pod stays behind its scheduling gate."""
    domain = tuple(each for each in pod.needs.selector if each[0] == pod.topology)
    return replace(pod, gates=(), needs=Needs(selector=domain))


def node(obj: Json) -> Node:
    """Return a node. Raises KeyError, TypeError, ValueError, AttributeError."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
    taints = (Taint(each["key"], each.get("value") or "", each["effect"]) for each in spec.get("taints") or ())
    return Node(
        name=obj["metadata"]["name"],
        labels=obj["metadata"].get("labels") or {},
        usable=ready and not spec.get("unschedulable"),
        taints=tuple(each for each in taints if each.effect in _HARD),
        allocatable=dict(_amounts(status.get("allocatable") or {})),
    )


def _needs(spec: Json) -> Needs:
    return Needs(
        selector=_selector(spec),
        tolerations=tuple(_toleration(each) for each in spec.get("tolerations") or ()),
        terms=_terms((spec.get("affinity") or {}).get("nodeAffinity") or {}),
        requests=tuple(sorted(_requests(spec).items())),
    )


def _selector(spec: Json) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((spec.get("nodeSelector") or {}).items()))


def _toleration(given: Json) -> Toleration:
    operator = given.get("operator") or "Equal"
    return Toleration(
        key=given.get("key") or "",
        exists=operator == "Exists",
        value=given.get("value") or "",
        effect=given.get("effect") or "",
    )


def _terms(affinity: Json) -> tuple[tuple[Requirement, ...], ...] | None:
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return None
    return tuple(
        (*_requirements(term, "matchExpressions"), *_requirements(term, "matchFields", of_field=True))
        for term in required.get("nodeSelectorTerms") or ()
    )


def _requirements(term: Json, kind: str, *, of_field: bool = False) -> Iterable[Requirement]:
    for each in term.get(kind) or ():
        yield Requirement(each["key"], each["operator"], tuple(each.get("values") or ()), of_field=of_field)


def _requests(spec: Json) -> Mapping[str, Fraction]:
    """Return a pod's total requests (``component-helpers/resource``, PodRequests): the maximum at any time."""
    running: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in spec.get("initContainers") or ():
        own = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            running = _sum(running, own)
            peak = _most(peak, running)
        else:
            peak = _most(peak, _sum(running, own))
    for container in spec.get("containers") or ():
        running = _sum(running, _container_requests(container))
    whole = dict(_amounts((spec.get("resources") or {}).get("requests") or {}))
    needed = {**_most(peak, running), **whole}
    return {**_sum(needed, dict(_amounts(spec.get("overhead") or {}))), _PODS: Fraction(1)}


def _container_requests(container: Json) -> dict[str, Fraction]:
    return dict(_amounts((container.get("resources") or {}).get("requests") or {}))


def _amounts(given: Json) -> Iterable[tuple[str, Fraction]]:
    for name, value in given.items():
        amount = quantities.parse(value)
        if amount is None:
            raise ValueError(f"{name}: {value!r} is not a valid quantity")
        yield name, amount


def _sum(one: Mapping[str, Fraction], other: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {name: one.get(name, Fraction(0)) + other.get(name, Fraction(0)) for name in {**one, **other}}


def _most(one: Mapping[str, Fraction], other: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {name: max(one.get(name, Fraction(0)), other.get(name, Fraction(0))) for name in {**one, **other}}
