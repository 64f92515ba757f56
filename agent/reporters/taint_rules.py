"""Compute which DeviceTaintRules (KEP-5055) should exist, from verdicts and ResourceSlices, and their content. Pure.

A rule managed by kubemend takes one device out of scheduling while its verdict is Unhealthy. It is deleted only when
the device is known to be usable again, or another one has its name: an unknown state leaves a rule unchanged.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubemend.agent.model import conditions
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.model.workloads import ClaimDevice

Object = dict[str, Any]

TAINT_KEY: Final = conditions.PREFIX + "unhealthy"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "kubemend"
NODE_LABEL: Final = conditions.PREFIX + "node"
DEVICE_ANNOTATION: Final = conditions.PREFIX + "device"
"""The name under which the device's health is kept: a device's name in its pool may later be another's."""

_LABEL_LENGTH = 63


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: ``known_as`` is the device's name in verdicts, ``reason`` (a label value) why it is unhealthy."""

    device: ClaimDevice
    known_as: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes to the rules, by name."""

    create: Mapping[str, Rule]
    change: Mapping[str, Rule]
    delete: Sequence[str]


def plan(
    *,
    verdicts: Sequence[Verdict],
    published: Mapping[ClaimDevice, frozenset[str]],
    rules: Mapping[str, Rule],
    node: str,
) -> Plan:
    """Return the changes that make the node's rules as desired, given the devices in ResourceSlices."""
    by_name = {verdict.device: verdict for verdict in verdicts}
    wanted: dict[str, Rule] = {}
    for device, names in published.items():
        faulty = [by_name[known] for known in names if known in by_name and by_name[known].health is Health.UNHEALTHY]
        if faulty:
            worst = max(faulty, key=lambda verdict: (verdict.action.severity, verdict.device))
            wanted[name(device, node=node)] = Rule(device, worst.device, _label(worst.reason))
    return Plan(
        create={key: rule for key, rule in wanted.items() if key not in rules},
        change={key: rule for key, rule in wanted.items() if key in rules and rules[key] != rule},
        delete=[
            key
            for key, rule in rules.items()
            if key not in wanted and _is_over(rule, verdict=by_name.get(rule.known_as), published=published)
        ],
    )


def _is_over(rule: Rule, *, verdict: Verdict | None, published: Mapping[ClaimDevice, frozenset[str]]) -> bool:
    """Return whether there is evidence that a rule that is not wanted any more is no longer needed."""
    names = published.get(rule.device)  # none while the driver publishes the device without them
    if names and rule.known_as not in names:
        return True  # another device has its name
    if verdict is not None:
        return verdict.health in (Health.HEALTHY, Health.DEGRADED)
    driver_is_there = any((other.driver, other.pool) == (rule.device.driver, rule.device.pool) for other in published)
    return not names and driver_is_there  # no verdict and no driver knows such a device any more


def name(device: ClaimDevice, *, node: str) -> str:
    """Return the name of the rule for a device: always the same, so that there is never a second one."""
    key = "\n".join((node, device.driver, device.pool, device.device))
    return f"kubemend-{hashlib.sha256(key.encode()).hexdigest()[:20]}"


def selector(node: str) -> str:
    """Return the label selector of the rules for one node's devices."""
    return f"{MANAGED_BY}={MANAGER},{NODE_LABEL}={_label(node)}"


def rule_object(rule: Rule, *, node: str, node_uid: str) -> Object:
    """Return the rule as it is created (without its apiVersion). It is deleted with its Node object."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
    return {
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": name(rule.device, node=node),
            "labels": {MANAGED_BY: MANAGER, NODE_LABEL: _label(node)},
            "annotations": {DEVICE_ANNOTATION: rule.known_as},
            "ownerReferences": [owner],
        },
        "spec": {
            "deviceSelector": {
                "driver": rule.device.driver,
                "pool": rule.device.pool,
                "device": rule.device.device,
            },
            "taint": {"key": TAINT_KEY, "value": rule.reason, "effect": "NoSchedule"},
        },
    }


def change(rule: Rule) -> Object:
    """Return the merge patch that updates an existing rule of that device."""
    return {
        "metadata": {"annotations": {DEVICE_ANNOTATION: rule.known_as}},
        "spec": {"taint": {"value": rule.reason}},
    }


def of_object(obj: Mapping[str, Any]) -> Rule:
    """Parse a rule in the API. Raises KeyError if it selects no single device: then it is not kubemend's."""
    selected, metadata = obj["spec"]["deviceSelector"], obj["metadata"]
    return Rule(
        device=ClaimDevice(driver=selected["driver"], pool=selected["pool"], device=selected["device"]),
        known_as=(metadata.get("annotations") or {}).get(DEVICE_ANNOTATION, ""),
        reason=obj["spec"]["taint"].get("value", ""),
    )


def _label(text: str) -> str:
    """Return a text as a label value, which has a length limit: node names may be longer."""
    return text if len(text) <= _LABEL_LENGTH else hashlib.sha256(text.encode()).hexdigest()[:_LABEL_LENGTH]


_UUIDS: Final = frozenset({"uuid", "parentUUID"})
"""Attributes that name a GPU: its own UUID, or of a MIG device its GPU's, whose faults are its own, too."""

_ADDRESSES: Final = frozenset({"pciBusID", "pciAddress"})
"""``resource.kubernetes.io/pciBusID`` is Kubernetes' own; drivers of NICs used the other one before."""


def published(slices: Iterable[Mapping[str, Any]]) -> dict[ClaimDevice, frozenset[str]]:
    """Return the devices in ResourceSlices, each with the names under which its health may be kept.

    Of a pool only the newest generation counts: old slices stay until a driver has replaced them all (KEP-4381).
    """
    slices = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for item in slices:
        pool, generation = _pool(item)
        newest[pool] = max(generation, newest.get(pool, generation))
    found: dict[ClaimDevice, frozenset[str]] = {}
    for item in slices:
        (driver, pool_name), generation = _pool(item)
        if generation == newest[driver, pool_name]:
            for device in item["spec"].get("devices") or ():
                name = ClaimDevice(driver=driver, pool=pool_name, device=device["name"])
                found[name] = frozenset(_names(device))
    return found


def _pool(item: Mapping[str, Any]) -> tuple[tuple[str, str], int]:
    spec = item["spec"]
    return (spec["driver"], spec["pool"]["name"]), int(spec["pool"].get("generation", 0))


def _names(device: Mapping[str, Any]) -> Iterator[str]:
    attributes = device.get("attributes") or (device.get("basic") or {}).get("attributes") or {}  # basic: v1beta1
    for qualified, value in attributes.items():
        text = value.get("string")
        attribute = qualified.rpartition("/")[2]
        if text and attribute in _UUIDS:
            yield text
        elif text and attribute in _ADDRESSES:
            try:
                yield str(PciAddress.parse(text))
            except ValueError:
                continue  # not a PCI address: it names nothing
