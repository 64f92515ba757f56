"""Convert Kubernetes quantities (``500m``, ``64Mi``) to numbers, and to kubelet's cgroup settings. Pure."""

import decimal
import re

from kubemend.common.pb.runtime.v1 import api_pb2 as cri
from tests.devnode.podconfig.spec import Json

_SUFFIXES: dict[str, decimal.Decimal | int] = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "m": decimal.Decimal("0.001"),
    "u": decimal.Decimal("0.000001"),
    "n": decimal.Decimal("0.000000001"),
}
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<suffix>[A-Za-z]{0,2})")
_PERIOD_US = 100_000
_MIN_QUOTA_US = 1_000
_MIN_SHARES = 2


def parse(text: str | float) -> decimal.Decimal:
    """Return the quantity's value. Raises ValueError when it is invalid."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None or match["suffix"] not in _SUFFIXES:
        raise ValueError(f"not a quantity: {text!r}")
    return decimal.Decimal(match["number"]) * _SUFFIXES[match["suffix"]]


def cgroup_limits(resources: Json) -> cri.LinuxContainerResources:
    """Return the cgroup settings for a container's ``resources`` (kubelet's ``calculateLinuxResources``)."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    cpu_limit = parse(limits.get("cpu", 0))
    cpu_request = parse(requests.get("cpu", limits.get("cpu", 0)))
    return cri.LinuxContainerResources(
        cpu_shares=max(_MIN_SHARES, int(cpu_request * 1024)),
        cpu_period=_PERIOD_US,
        cpu_quota=max(_MIN_QUOTA_US, int(cpu_limit * _PERIOD_US)) if cpu_limit else 0,
        memory_limit_in_bytes=int(parse(limits.get("memory", 0))),
    )


def qos_class(containers: list[Json]) -> str:
    """Return ``Guaranteed``, ``Burstable`` or ``BestEffort`` (``GetPodQOS``)."""
    wanted = [item.get("resources") or {} for item in containers]
    amounts = [
        (limits.get(kind), requests.get(kind, limits.get(kind)))
        for limits, requests in ((item.get("limits") or {}, item.get("requests") or {}) for item in wanted)
        for kind in ("cpu", "memory")
    ]
    if not any(limit or request for limit, request in amounts):
        return "BestEffort"
    same = all(limit and request and parse(limit) == parse(request) for limit, request in amounts)
    return "Guaranteed" if same else "Burstable"
