"""Read the device health that device plugins and DRA drivers report per container (KEP-4680). Pure.

Kubelet publishes it as ``containerStatuses[].allocatedResourcesStatus[]``. It reports that a device is unhealthy,
without the cause. It is one source among others and can be stale: kubelet does not query again, and the status is not
updated after the pod's end.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubemend.agent.model.workloads import ReportedHealth, ResourceHealth

_BY_VALUE: Final = {health.value: health for health in ReportedHealth}


def read(status: Mapping[str, Any]) -> tuple[ResourceHealth, ...]:
    """Return the device health in a pod's status, in an order independent of kubelet's maps.

    A value unknown to Kubernetes (the KEP mentions ``PermanentlyUnhealthy``) reads as Unknown.
    """
    return tuple(sorted(_items(status), key=lambda item: (item.resource, item.id, item.health.value, item.message)))


def _items(status: Mapping[str, Any]) -> Iterator[ResourceHealth]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            for allocated in container.get("allocatedResourcesStatus") or ():
                for item in allocated.get("resources") or ():
                    yield ResourceHealth(
                        resource=allocated["name"],
                        id=item["resourceID"],
                        health=_BY_VALUE.get(item.get("health", ""), ReportedHealth.UNKNOWN),
                        message=item.get("message") or "",
                    )
